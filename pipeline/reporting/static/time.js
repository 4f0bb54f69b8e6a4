// One time axis for the whole page: the range shown, the current window, the listeners for changes of both, the toolbar.

class TimeAxis {
  constructor(counts, zone) {
    this.counts = counts;
    this.zone = zone;
    this.all = [counts.start[0], counts.end[counts.nWindows - 1]];
    [this.from, this.until] = this.all;
    this.at = 0;
    this.cell = -1;
    this.listeners = { range: [], cursor: [], cell: [] };
    this.clock = new Intl.DateTimeFormat("en-GB", {
      timeZone: zone, weekday: "short", day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit",
    });
    this.parts = new Intl.DateTimeFormat("en-GB", {
      timeZone: zone, hourCycle: "h23", year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", second: "numeric",
    });
  }

  on(what, act) { this.listeners[what].push(act); }
  tell(what) { this.listeners[what].forEach((act) => act()); }

  show(from, until) {
    const [first, last] = this.all;
    const shortest = (this.counts.end[0] - this.counts.start[0]) * 2;
    const length = Math.min(Math.max(until - from, shortest), last - first);
    this.from = Math.min(Math.max(from, first), last - length);
    this.until = this.from + length;
    this.tell("range");
  }

  // Factor below 1 zooms in, around the window looked at where it is in sight.
  zoom(factor) {
    const middle = this.counts.middle[this.at];
    const centre = middle >= this.from && middle <= this.until ? middle : (this.from + this.until) / 2;
    this.show(centre - (centre - this.from) * factor, centre + (this.until - centre) * factor);
  }

  move(share) {
    const by = (this.until - this.from) * share;
    this.show(this.from + by, this.until + by);
  }

  look(window) {
    const at = Math.min(Math.max(window, 0), this.counts.nWindows - 1);
    if (at === this.at) return;
    this.at = at;
    this.tell("cursor");
  }

  choose(cell) {
    this.cell = cell;
    this.tell("cell");
  }

  // The window in the middle of which a time is nearest.
  nearest(time) {
    const { middle } = this.counts;
    let low = 0, high = middle.length - 1;
    while (high - low > 1) {
      const half = (low + high) >> 1;
      if (middle[half] <= time) low = half; else high = half;
    }
    return time - middle[low] <= middle[high] - time ? low : high;
  }

  // First and last window that touch the stretch shown.
  shown() {
    const { start, end, nWindows } = this.counts;
    let first = 0, last = nWindows - 1;
    while (first < last && end[first] <= this.from) first++;
    while (last > first && start[last] >= this.until) last--;
    return [first, last];
  }

  offset(time) {
    const p = Object.fromEntries(this.parts.formatToParts(time).map(({ type, value }) => [type, Number(value)]));
    return Date.UTC(p.year, p.month - 1, p.day, p.hour, p.minute, p.second) - Math.floor(time / 1000) * 1000;
  }

  ticks(width) {
    const minute = 60000, hour = 3600000, day = 86400000;
    const steps = [minute, 5 * minute, 15 * minute, hour, 3 * hour, 6 * hour, 12 * hour, day, 2 * day, 7 * day, 14 * day, 30 * day, 91 * day, 365 * day];
    const wanted = (this.until - this.from) / Math.max(2, width / 72);
    const step = steps.find((s) => s >= wanted) || steps.at(-1);
    const shift = this.offset(this.from);
    // Weeks begin on Monday: 1970-01-05 was one.
    const base = step >= 7 * day ? 4 * day : 0;
    const ticks = [];
    for (let wall = Math.ceil((this.from + shift - base) / step) * step + base; ; wall += step) {
      // Where the clocks change, the same wall time is at another offset.
      const time = wall - this.offset(wall - shift);
      if (time > this.until) return ticks;
      if (time >= this.from) ticks.push({ time, label: this.label(time, wall, step), strong: wall % day === 0 && step < day });
    }
  }

  label(time, wall, step) {
    const day = 86400000;
    const options = step >= 28 * day ? { month: "short", year: "numeric" } : step >= day || wall % day === 0
      ? { weekday: step < 7 * day ? "short" : undefined, day: "numeric", month: "short" } : { hour: "2-digit", minute: "2-digit" };
    return new Intl.DateTimeFormat("en-GB", { timeZone: this.zone, ...options }).format(time);
  }

  says(window) { return this.clock.format(this.counts.start[window]); }

  // Stretches of successive landmarks as [first, last].
  landmarks() {
    const runs = [];
    this.counts.landmark.forEach((is, i) => {
      if (!is) return;
      if (runs.length && runs.at(-1)[1] === i - 1) runs.at(-1)[1] = i; else runs.push([i, i]);
    });
    return runs;
  }
}

// Click or drag along a time axis: a click looks at a window, a drag shows the stretch, a double click shows all.
function followPointer(node, axis, timeAt, selection) {
  let begun = null;
  node.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    begun = timeAt(event);
    node.setPointerCapture(event.pointerId);
  });
  node.addEventListener("pointermove", (event) => {
    if (begun === null || !event.buttons) { if (event.pointerType === "mouse") axis.look(axis.nearest(timeAt(event))); return; }
    selection(begun, timeAt(event));
  });
  const end = (event) => {
    if (begun === null) return;
    const [from, until] = [begun, timeAt(event)].sort((a, b) => a - b);
    begun = null;
    selection(null);
    if (event.type === "pointercancel") return;
    if (until - from > (axis.until - axis.from) / 60) axis.show(from, until);
    else axis.look(axis.nearest(until));
  };
  node.addEventListener("pointerup", end);
  node.addEventListener("pointercancel", end);
  node.addEventListener("dblclick", () => axis.show(...axis.all));
}

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
    // The first release of a budget period is charged for all of it: that the others cost 0 would be misread.
    const charge = counts.epsilon[at] > 0 && Number.isFinite(counts.epsilon[at]) ? `charge ε ${short(counts.epsilon[at])}` : null;
    const facts = [counts.landmark[at] ? "landmark" : null, counts.actions[counts.action[at]], charge].filter(Boolean).join(" · ");
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
