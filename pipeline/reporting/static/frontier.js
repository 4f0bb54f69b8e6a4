// The settings of an experiment: by two of its limited measures, with limits and frontier, or ranked by a single one.

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
  const share = isLog ? (v) => Math.log(v / low) / Math.log(high / low) : (v) => (v - low) / (high - low);
  const decades = () => Array.from({ length: 40 }, (_, i) => 10 ** (Math.floor(Math.log10(low)) + Math.floor(i / 3)) * [1, 2, 5][i % 3]).filter((v) => v >= low && v <= high);
  const at = (v) => from + Math.min(Math.max(share(v), -0.1), 1.1) * (to - from);
  return { at, ticks: isLog ? decades() : niceTicks(low, high, 6).filter((v) => v <= high) };
}

const verdictOn = ({ allowed, best }, at) => (best[at] ? "best of those that keep every limit" : allowed[at] ? "keeps every limit" : "breaks a limit");

function saveSettings({ measures, settings, allowed, best }) {
  const columns = ["setting", "keeps every limit", "best", ...measures.flatMap((m) => [m.label, `${m.label} (low)`, `${m.label} (high)`])];
  const rows = settings.map((name, i) => [name, allowed[i] ? "yes" : "no", best[i] ? "yes" : "no", ...measures.flatMap((m) => [m.mean[i], m.low[i], m.high[i]])]);
  download("all-settings", columns, rows);
}

// One line for each setting, the best value first: what a single measure says, with the name beside the point.
class Ranking {
  // data: as of `Frontier`, with one measure
  constructor(data) {
    this.data = data;
    const [m] = data.measures, worst = m.atLeast ? -Infinity : Infinity;
    const key = (i) => (Number.isNaN(m.mean[i]) ? worst : m.mean[i]);
    this.order = [...data.settings.keys()].sort((i, j) => data.best[j] - data.best[i] || (m.atLeast ? key(j) - key(i) : key(i) - key(j)) || 0);
    this.drawing = svg("svg", { class: "chart frontier", role: "img" });
    this.node = html("figure", { "data-chart": "ranking" },
      html("figcaption", {}, html("h3", {}, m.label), html("div", { class: "tools" }, csvButton("all settings", () => saveSettings(data)))),
      html("p", { class: "note" }, `Filled: keeps every limit. Ring: best. Lines: intervals over seeds.${m.limit === null ? "" : " Beyond the dashed limit is shaded."}`),
      this.drawing);
    new ResizeObserver(() => this.draw()).observe(this.node);
    this.draw();
  }

  // The values of those that keep every limit fill the width; others may lie at its edge, with their number beside it.
  range() {
    const { measures: [m], allowed } = this.data;
    const all = (kept) => this.order.filter((i) => !kept || allowed[i]).flatMap((i) => [m.mean[i], m.low[i], m.high[i]]).filter(Number.isFinite);
    const values = [0, ...(m.limit === null ? [] : [m.limit]), ...(all(true).length ? all(true) : all(false))];
    const low = Math.min(...values), high = Math.max(...values), room = (high - low || 1) * 0.25;
    const every = [low, high, ...all(false)];
    return [Math.max(Math.min(...every), low - room), Math.min(Math.max(...every), high + room)];
  }

  draw() {
    const { measures: [m], settings, allowed, best } = this.data;
    const width = Math.max(this.node.clientWidth, 260), isNarrow = width < 560;
    const west = isNarrow ? 8 : Math.min(7 * Math.max(...settings.map((name) => name.length)) + 16, width / 2), right = width - 64;
    const tall = isNarrow ? 44 : 24, bottom = this.order.length * tall + 6;
    const [low, high] = this.range();
    const x = (v) => west + (Math.min(Math.max((v - low) / (high - low || 1), 0), 1)) * (right - west);
    const made = niceTicks(low, high, isNarrow ? 3 : 6).flatMap((tick) => [
      svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: 0, y2: bottom }),
      svg("text", { x: x(tick), y: bottom + 16, "text-anchor": "middle" }, said(m, tick))]);
    if (m.limit !== null) {
      const [from, to] = m.atLeast ? [west, x(m.limit)] : [x(m.limit), right];
      made.push(svg("rect", { class: "beyond", x: from, width: Math.max(to - from, 0), y: 0, height: bottom }),
        svg("line", { class: "limit", x1: x(m.limit), x2: x(m.limit), y1: 0, y2: bottom }));
    }
    this.order.forEach((i, row) => {
      const y = row * tall + (isNarrow ? 32 : 14), at = x(m.mean[i]);
      made.push(svg("text", { class: "name", x: isNarrow ? west : west - 12, y: isNarrow ? y - 15 : y + 4, "text-anchor": isNarrow ? "start" : "end" }, settings[i]),
        svg("text", { class: best[i] ? "name" : "", x: width, y: y + 4, "text-anchor": "end" }, said(m, m.mean[i])));
      if (Number.isNaN(m.mean[i])) return;
      if (Number.isFinite(m.low[i])) made.push(svg("line", { class: "spread", x1: x(m.low[i]), x2: x(m.high[i]), y1: y, y2: y }));
      const title = `${settings[i]}: ${said(m, m.mean[i])}, ${verdictOn(this.data, i)}`;
      made.push(svg("path", { d: SHAPES[0](5), class: `c0 point${allowed[i] ? " kept" : ""}`, transform: `translate(${at.toFixed(1)} ${y})` }, svg("title", {}, title)));
      if (best[i]) made.push(svg("circle", { class: "ring", cx: at, cy: y, r: 9 }));
    });
    this.drawing.setAttribute("height", bottom + 24);
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${bottom + 24}`);
    this.drawing.setAttribute("aria-label", `${settings.length} settings by ${m.label}, the best value first; the table below holds all values.`);
    this.drawing.replaceChildren(...made);
  }
}

class Frontier {
  // data: {measures: [{label, limit, atLeast, share, mean, low, high}], settings, group, allowed, best}
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
      html("figcaption", {}, html("h3", {}, "Frontier"), html("div", { class: "tools" }, csvButton("all settings", () => saveSettings(data)))),
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
    const { measures, settings } = this.data, at = Number(this.picked.value);
    const values = measures.map((m) => `${m.label} ${said(m, m.mean[at])}`).join(" · ");
    this.says.replaceChildren(html("strong", {}, `${settings[at]}: ${verdictOn(this.data, at)}. `), values);
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
        svg("text", { x: WEST - 8, y: this.y.at(tick) + 4, "text-anchor": "end" }, said(n, tick))]),
      ...this.x.ticks.flatMap((tick) => [svg("line", { class: "grid", x1: this.x.at(tick), x2: this.x.at(tick), y1: NORTH, y2: bottom }),
        svg("text", { x: this.x.at(tick), y: bottom + 16, "text-anchor": "middle" }, said(m, tick))]),
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
}
