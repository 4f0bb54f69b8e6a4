// The sticky toolbar: the current window in words, a miniature of the whole run, and a slider.

const STRIP = 34;

function toolbar(axis, total) {
  const { counts } = axis;
  const says = html("output", { "aria-live": "off" });
  const slider = html("input", { type: "range", min: 0, max: counts.nWindows - 1, step: 1, "aria-label": "Window", oninput: () => axis.look(Number(slider.value)) });
  const buttons = html("div", { class: "buttons", role: "group", "aria-label": "Stretch of time shown" },
    plainButton("←", "Earlier", () => axis.move(-0.5)), plainButton("→", "Later", () => axis.move(0.5)),
    plainButton("+", "Zoom in", () => axis.zoom(0.5)), plainButton("−", "Zoom out", () => axis.zoom(2)), plainButton("All", "Show all", () => axis.show(...axis.all)));
  const point = () => {
    const { at } = axis;
    slider.value = at;
    const facts = [counts.landmark[at] ? "landmark" : null, counts.actions[counts.action[at]], `ε ${short(counts.epsilon[at])}`].filter(Boolean).join(" · ");
    says.replaceChildren(html("strong", {}, axis.says(at)), html("span", { class: "muted" }, `  window ${counts.window[at].toLocaleString("en")} · ${facts}`));
    slider.setAttribute("aria-valuetext", `${axis.says(at)}, ${facts}`);
  };
  axis.on("cursor", point);
  point();
  return html("div", { class: "toolbar" }, html("div", { class: "row" }, says, buttons), new Strip(axis, total).node, slider);
}

// The whole run: people released, landmarks, windows that were not published, and the stretch that is shown.
class Strip {
  constructor(axis, total) {
    Object.assign(this, { axis, total, width: 240 });
    this.node = svg("svg", { role: "img", preserveAspectRatio: "none", "aria-label": "All windows: counts released, landmarks, and the stretch that is shown" });
    this.cursor = svg("line", { class: "cursor", y1: 0, y2: STRIP });
    this.selection = svg("rect", { class: "select", y: 0, height: STRIP, width: 0 });
    followPointer(this.node, axis, (event) => this.timeAt(event), (from, until) => this.select(from, until));
    axis.on("range", () => this.draw());
    axis.on("cursor", () => this.point());
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  x(time) { return ((time - this.axis.all[0]) / (this.axis.all[1] - this.axis.all[0])) * this.width; }

  timeAt(event) {
    const box = this.node.getBoundingClientRect(), [first, last] = this.axis.all;
    return first + Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1) * (last - first);
  }

  // A column over some windows.
  column(name, first, last, height) {
    const { start, end } = this.axis.counts, x = this.x(start[first]);
    return svg("rect", { class: name, x, width: Math.max(this.x(end[last]) - x, 1), y: 0, height });
  }

  draw() {
    this.width = Math.max(this.node.clientWidth, 240);
    const { axis, width } = this, { start, end, action, actions } = axis.counts;
    const most = this.total.reduce((a, b) => Math.max(a, b), 1);
    const height = (value) => (STRIP - ((STRIP - 4) * Math.max(value, 0)) / most).toFixed(1);
    const area = Array.from(this.total, (value, i) => `${this.x(start[i]).toFixed(1)} ${height(value)}H${this.x(end[i]).toFixed(1)}`).join("L");
    const kinds = actions.map((name) => (name === "refused" ? ["refused-mark", 5] : ["other-mark", 3]));
    const marks = Array.from(action).flatMap((kind, i) => (kind === 0 ? [] : [this.column(kinds[kind][0], i, i, kinds[kind][1])]));
    const outside = (from, until) => svg("rect", { class: "outside", x: from, y: 0, width: Math.max(until - from, 0), height: STRIP });
    this.node.setAttribute("viewBox", `0 0 ${width} ${STRIP}`);
    this.node.replaceChildren(
      ...axis.landmarks().map(([first, last]) => this.column("landmark", first, last, STRIP)),
      svg("path", { class: "total", d: `M0 ${STRIP}L${area}V${STRIP}Z` }), ...marks,
      outside(0, this.x(axis.from)), outside(this.x(axis.until), width), this.selection, this.cursor);
    this.point();
  }

  point() {
    const place = this.x(this.axis.counts.middle[this.axis.at]);
    this.cursor.setAttribute("x1", place);
    this.cursor.setAttribute("x2", place);
  }

  select(from, until) {
    const [left, right] = from === null ? [0, 0] : [this.x(from), this.x(until)].sort((a, b) => a - b);
    this.selection.setAttribute("x", left);
    this.selection.setAttribute("width", right - left);
  }
}
