// Scatter plot of the settings of an experiment by two of its limited measures, with limits and frontier.

const TALL = 380, WEST = 56, EAST = 14, NORTH = 12, SOUTH = 42;
const SHAPES = [
  (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
  (r) => `M${-r} ${-r}H${r}V${r}H${-r}Z`,
  (r) => `M0 ${-1.3 * r}L${1.3 * r} 0L0 ${1.3 * r}L${-1.3 * r} 0Z`,
  (r) => `M0 ${-1.2 * r}L${1.2 * r} ${r}H${-1.2 * r}Z`,
  (r) => `M0 ${1.2 * r}L${1.2 * r} ${-r}H${-1.2 * r}Z`,
];

// One axis over some values, logarithmic where they span much.
function scaleOf(values, from, to) {
  const known = values.filter(Number.isFinite);
  let low = known.reduce((a, b) => Math.min(a, b), Infinity), high = known.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!known.length) [low, high] = [0, 1];
  const isLog = low > 0 && high / low > 30;
  if (isLog) [low, high] = [low / 1.25, high * 1.25];
  else { const room = (high - low || Math.abs(high) || 1) * 0.06; [low, high] = [low >= 0 && low < (high - low) ? 0 : low - room, high + room]; }
  const whole = known.every(Number.isInteger);  // places in an order
  const share = isLog ? (v) => Math.log(v / low) / Math.log(high / low) : (v) => (v - low) / (high - low);
  const decades = () => Array.from({ length: 40 }, (_, i) => 10 ** (Math.floor(Math.log10(low)) + Math.floor(i / 3)) * [1, 2, 5][i % 3]).filter((v) => v >= low && v <= high);
  const at = (v) => from + Math.min(Math.max(share(v), -0.1), 1.1) * (to - from);
  return { at, ticks: isLog ? decades() : niceTicks(low, high, 6).filter((v) => v <= high && (!whole || Number.isInteger(v))) };
}

class Frontier {
  // data: {measures: [{label, limit, atLeast, mean, low, high}], settings, group, allowed, best}
  constructor(data) {
    this.data = data;
    this.groups = [...new Set(data.group)];
    const chooser = (name, options, value, act) => {
      const node = html("select", { "aria-label": name, onchange: act }, ...options.map((label, i) => html("option", { value: i }, label)));
      node.value = value;
      return node;
    };
    const labels = data.measures.map((m) => m.label);
    const useful = Math.max(data.measures.findIndex((m) => m.atLeast), 0);
    const risky = data.measures.findIndex((m, i) => i !== useful && !m.atLeast);
    this.across = chooser("Horizontal axis", labels, risky >= 0 ? risky : useful ? 0 : 1, () => this.draw());
    this.up = chooser("Vertical axis", labels, useful, () => this.draw());
    this.picked = chooser("Setting", data.settings, Math.max(data.best.indexOf(1), 0), () => this.pick());
    this.says = html("p", { class: "note", role: "status" });
    this.drawing = svg("svg", { class: "chart frontier", role: "img", height: TALL });
    const of = (text, node) => html("label", {}, `${text} `, node);
    this.node = html("figure", { "data-chart": "frontier" },
      html("figcaption", {}, html("h3", {}, "Frontier"), html("div", { class: "tools" }, csvButton("all settings", () => this.save()))),
      html("p", { class: "note" }, "Filled: keeps every limit. Ring: best. Dotted: no setting is better in both measures shown. Beyond the dashed limits is shaded."),
      html("p", { class: "axes" }, of("Up", this.up), of("Across", this.across), of("Setting", this.picked)),
      this.legend(), this.drawing, this.says);
    new ResizeObserver(() => this.draw()).observe(this.node);
    this.pick();
  }

  mark(i, r, extra = "") { return { d: SHAPES[i % SHAPES.length](r), class: `c${i % 6} ${extra}` }; }

  legend() {
    return html("div", { class: "legend" }, ...(this.groups.length > 1 ? this.groups : []).map((name, i) =>
      html("span", { class: "key" }, svg("svg", { viewBox: "-11 -5 22 10", "aria-hidden": "true" }, svg("path", this.mark(i, 4, "point kept"))), name)));
  }

  pick() {
    const { measures, settings, allowed, best } = this.data, at = Number(this.picked.value);
    const values = measures.map((m) => `${m.label} ${short(m.mean[at])}`).join(" · ");
    const verdict = best[at] ? "best of those that keep every limit" : allowed[at] ? "keeps every limit" : "breaks a limit";
    this.says.replaceChildren(html("strong", {}, `${settings[at]}: ${verdict}. `), values);
    this.draw();
  }

  draw() {
    const [m, n] = [this.across, this.up].map((select) => this.data.measures[Number(select.value)]);
    if (!m || !n) return;
    const width = Math.max(this.node.clientWidth, 260), bottom = TALL - SOUTH, right = width - EAST;
    const all = ({ mean, low, high, limit }) => [...mean, ...low, ...high, limit].filter((v) => v !== null);
    this.x = scaleOf(all(m), WEST, right);
    this.y = scaleOf(all(n), bottom, NORTH);
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${TALL}`);
    this.drawing.setAttribute("aria-label", `${this.data.settings.length} settings, ${n.label} against ${m.label}; the table below holds all values.`);
    this.drawing.replaceChildren(...this.grid(m, n, right, bottom), ...this.beyond(m, n, right, bottom), this.edge(m, n), ...this.points(m, n));
  }

  grid(m, n, right, bottom) {
    const middle = (WEST + right) / 2;
    return [
      ...this.y.ticks.flatMap((tick) => [svg("line", { class: "grid", x1: WEST, x2: right, y1: this.y.at(tick), y2: this.y.at(tick) }),
        svg("text", { x: WEST - 8, y: this.y.at(tick) + 4, "text-anchor": "end" }, short(tick))]),
      ...this.x.ticks.flatMap((tick) => [svg("line", { class: "grid", x1: this.x.at(tick), x2: this.x.at(tick), y1: NORTH, y2: bottom }),
        svg("text", { x: this.x.at(tick), y: bottom + 16, "text-anchor": "middle" }, short(tick))]),
      svg("text", { class: "name", x: middle, y: TALL - 6, "text-anchor": "middle" }, m.label),
      svg("text", { class: "name", x: -(NORTH + bottom) / 2, y: 12, "text-anchor": "middle", transform: "rotate(-90)" }, n.label)];
  }

  // The side of each limit where nothing is allowed.
  beyond(m, n, right, bottom) {
    const made = [];
    if (m.limit !== null) {
      const x = this.x.at(m.limit), [from, to] = m.atLeast ? [WEST, x] : [x, right];
      made.push(svg("rect", { class: "beyond", x: from, width: Math.max(to - from, 0), y: NORTH, height: bottom - NORTH }),
        svg("line", { class: "limit", x1: x, x2: x, y1: NORTH, y2: bottom }));
    }
    if (n.limit !== null) {
      const y = this.y.at(n.limit), [from, to] = n.atLeast ? [y, bottom] : [NORTH, y];
      made.push(svg("rect", { class: "beyond", x: WEST, width: right - WEST, y: from, height: Math.max(to - from, 0) }),
        svg("line", { class: "limit", x1: WEST, x2: right, y1: y, y2: y }));
    }
    return made;
  }

  // Steps through the settings that no other one beats in both measures.
  edge(m, n) {
    const gain = (measure, i) => (measure.atLeast ? measure.mean[i] : -measure.mean[i]);
    const order = [...m.mean.keys()].filter((i) => Number.isFinite(m.mean[i]) && Number.isFinite(n.mean[i]))
      .sort((i, j) => gain(m, j) - gain(m, i) || gain(n, j) - gain(n, i));
    const edge = [];
    for (const i of order) if (!edge.length || gain(n, i) > gain(n, edge.at(-1))) edge.push(i);
    const steps = edge.map((i, k) => `${k ? `V${this.y.at(n.mean[edge[k - 1]]).toFixed(1)}H` : "M"}${this.x.at(m.mean[i]).toFixed(1)}${k ? "V" : " "}${this.y.at(n.mean[i]).toFixed(1)}`);
    return svg("path", { class: "edge", d: steps.join("") });
  }

  points(m, n) {
    const { group, allowed, best, settings } = this.data, picked = Number(this.picked.value);
    const place = (i) => [this.x.at(m.mean[i]), this.y.at(n.mean[i])];
    const order = [...settings.keys()].filter((i) => Number.isFinite(m.mean[i]) && Number.isFinite(n.mean[i]));
    return [
      ...order.flatMap((i) => {
        const [x, y] = place(i), sides = [];
        if (Number.isFinite(m.low[i])) sides.push(svg("line", { class: "spread", x1: this.x.at(m.low[i]), x2: this.x.at(m.high[i]), y1: y, y2: y }));
        if (Number.isFinite(n.low[i])) sides.push(svg("line", { class: "spread", x1: x, x2: x, y1: this.y.at(n.low[i]), y2: this.y.at(n.high[i]) }));
        return sides;
      }),
      ...order.map((i) => {
        const [x, y] = place(i);
        const attributes = { ...this.mark(this.groups.indexOf(group[i]), 5, `point${allowed[i] ? " kept" : ""}`), transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` };
        return svg("path", { ...attributes, onclick: () => { this.picked.value = i; this.pick(); } }, svg("title", {}, settings[i]));
      }),
      ...order.filter((i) => best[i]).map((i) => svg("circle", { class: "ring", cx: place(i)[0], cy: place(i)[1], r: 11 })),
      ...order.filter((i) => i === picked).map((i) => svg("circle", { class: "picked", cx: place(i)[0], cy: place(i)[1], r: 8 }))];
  }

  save() {
    const { measures, settings, allowed, best } = this.data;
    const columns = ["setting", "keeps every limit", "best", ...measures.flatMap((m) => [m.label, `${m.label} (low)`, `${m.label} (high)`])];
    const rows = settings.map((name, i) => [name, allowed[i] ? "yes" : "no", best[i] ? "yes" : "no", ...measures.flatMap((m) => [m.mean[i], m.low[i], m.high[i]])]);
    download("all-settings", columns, rows);
  }
}
