// A line chart on the page's time axis: lines, steps, bands, landmarks, a cursor, and its data as CSV.

const HEIGHT = 200, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 22;

class Chart {
  // about: {title, unit, note, lines: [{label, value, low, high, quantiles, hidden, dots}], rules, domain, style, tools, share, people}
  constructor(axis, about) {
    this.axis = axis;
    this.about = { rules: [], domain: null, style: "line", note: "", ...about };
    this.drawing = svg("svg", { class: "chart", role: "img", height: HEIGHT });
    this.legend = html("div", { class: "legend" });
    const tools = html("div", { class: "tools" }, ...(about.tools || []), csvButton(about.title, () => this.save()));
    this.unit = html("span", { class: "unit" }, about.unit || "");
    const note = this.about.note ? html("p", { class: "note" }, this.about.note) : null;
    this.node = html("figure", { "data-chart": about.id },
      html("figcaption", {}, html("h3", {}, about.title), this.unit, tools), note, this.legend, this.drawing);
    this.setLines(about.lines);
    const selection = (from, until) => this.select(from, until);
    followPointer(this.drawing, axis, (event) => this.timeAt(event), selection);
    axis.on("range", () => this.draw());
    axis.on("cursor", () => this.point());
    new ResizeObserver(() => this.draw()).observe(this.node);
  }

  setLines(lines, unit = this.about.unit) {
    this.unit.textContent = this.about.unit = unit || "";
    this.lines = lines.map((line, i) => ({ ...line, colour: line.ink ?? i % 6 }));
    this.stack();
    this.legend.replaceChildren(...this.lines.map((line) => this.key(line)));
    this.draw();
  }

  key(line) {
    line.now = html("span", { class: "now" });
    const swatch = svg("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" }, this.sparse(line)
      ? svg("circle", { cx: 11, cy: 5, r: 3, class: `f${line.colour}` })
      : line.stacked ? svg("rect", { width: 22, height: 10, class: `area f${line.colour}` })
        : svg("path", { d: "M0 5H22", class: `line l${line.colour}` }));
    return html("button", {
      type: "button", "aria-pressed": String(!line.hidden),
      onclick: (event) => {
        line.hidden = !line.hidden;
        event.currentTarget.setAttribute("aria-pressed", String(!line.hidden));
        this.stack();
        this.draw();
      },
    }, swatch, html("span", { class: "name" }, line.label), line.now);
  }

  // Stacked lines begin where the ones before them end.
  stack() {
    const sum = new Float64Array(this.axis.counts.nWindows);
    for (const line of this.lines) {
      if (!line.stacked || line.hidden) continue;
      line.base = sum.slice();
      line.value.forEach((v, i) => { sum[i] += v || 0; });
      // Where there is nothing of it, it has no edge: it would lie on the edge of another.
      line.top = sum.map((v, i) => (line.value[i] ? v : NaN));
    }
  }

  // Where a line is drawn.
  drawn(line) { return line.stacked ? line.top : line.value; }

  // A figure that windows here and there have, most without a neighbour, is drawn as dots.
  sparse({ value, dots }) {
    if (dots) return true;
    let known = 0, alone = 0;
    value.forEach((v, i) => {
      if (Number.isNaN(v)) return;
      known++;
      if (Number.isNaN(value[i - 1] ?? NaN) && Number.isNaN(value[i + 1] ?? NaN)) alone++;
    });
    return alone > known / 2;
  }

  x(time) { return LEFT + ((time - this.axis.from) / (this.axis.until - this.axis.from)) * (this.width - LEFT - RIGHT); }
  y(value) { return TOP + (1 - (value - this.low) / (this.high - this.low)) * (HEIGHT - TOP - BOTTOM); }

  timeAt(event) {
    const box = this.drawing.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    return this.axis.from + Math.min(Math.max(share, 0), 1) * (this.axis.until - this.axis.from);
  }

  draw() {
    this.width = Math.max(this.node.clientWidth, 240);
    [this.first, this.last] = this.axis.shown();
    this.scale();
    const { width } = this;
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.drawing.setAttribute("aria-label", this.summary());
    const frame = svg("g", { "clip-path": `inset(0)` }, ...this.visible().flatMap((line) => this.marks(line)));
    this.box = svg("rect", { class: "select", y: TOP, height: HEIGHT - TOP - BOTTOM, width: 0 });
    this.pointer = svg("g", { "aria-hidden": "true" });
    const clip = svg("svg", { x: LEFT, y: 0, width: width - LEFT - RIGHT, height: HEIGHT, viewBox: `${LEFT} 0 ${width - LEFT - RIGHT} ${HEIGHT}` },
      ...this.landmarks(), frame, this.box);
    this.drawing.replaceChildren(...this.grid(), clip, ...this.rules(), this.pointer);
    this.point();
  }

  visible() { return this.lines.filter((line) => !line.hidden); }

  scale() {
    const [forced, rules] = [this.about.domain || [], this.about.rules.map((rule) => rule.value)];
    let low = Math.min(0, ...forced), high = Math.max(0, ...forced, ...rules);
    if (this.about.domain && this.about.domain[0] > 0) low = this.about.domain[0];
    for (const line of this.visible()) {
      const sides = [this.drawn(line), line.high, line.low, line.quantiles && line.quantiles.q0, line.quantiles && line.quantiles.q4];
      for (const side of sides) {
        for (let i = this.first; side && i <= this.last; i++) {
          if (!Number.isFinite(side[i])) continue;
          if (side[i] < low) low = side[i];
          if (side[i] > high) high = side[i];
        }
      }
    }
    if (high <= low) high = low + 1;
    this.ticks = niceTicks(low, high, 5);
    const step = this.ticks[1] - this.ticks[0] || 1;
    this.low = Math.min(low, this.ticks[0]);
    this.high = high > this.ticks.at(-1) + step * 0.3 ? this.ticks.at(-1) + step : Math.max(high, this.ticks.at(-1));
    this.ticks = niceTicks(this.low, this.high, 5).filter((tick) => tick <= this.high + step * 1e-6);
  }

  grid() {
    const { width } = this;
    const bottom = HEIGHT - BOTTOM;
    const lines = this.ticks.flatMap((tick) => [
      svg("line", { class: tick === 0 ? "axis" : "grid", x1: LEFT, x2: width - RIGHT, y1: this.y(tick), y2: this.y(tick) }),
      svg("text", { x: LEFT - 8, y: this.y(tick) + 4, "text-anchor": "end" }, said({ share: this.about.share }, tick)),
    ]);
    const times = this.axis.ticks(width - LEFT - RIGHT).flatMap(({ time, label }) => {
      const x = this.x(time);
      return [
        svg("line", { class: "axis", x1: x, x2: x, y1: bottom, y2: bottom + 4 }),
        x < width - 24 ? svg("text", { x, y: bottom + 16, "text-anchor": "middle" }, label) : null,
      ];
    });
    return [...lines, ...times.filter(Boolean)];
  }

  landmarks() {
    const { start, end } = this.axis.counts;
    return this.axis.landmarks().filter(([first, last]) => end[last] > this.axis.from && start[first] < this.axis.until).map(([first, last]) =>
      svg("rect", { class: "landmark", x: this.x(start[first]), width: Math.max(this.x(end[last]) - this.x(start[first]), 1), y: TOP, height: HEIGHT - TOP - BOTTOM }));
  }

  rules() {
    const y = (rule) => this.y(rule.value);
    return this.about.rules.filter((rule) => Number.isFinite(rule.value)).flatMap((rule) => [
      svg("line", { class: "rule", x1: LEFT, x2: this.width - RIGHT, y1: y(rule), y2: y(rule) }),
      svg("text", { class: "rule-label", x: this.width - RIGHT, y: y(rule) - 4, "text-anchor": "end" }, `${rule.label} ${said(this.about, rule.value)}`),
    ]);
  }

  marks(line) {
    const { middle } = this.axis.counts;
    const made = [];
    if (line.quantiles) {
      made.push(band(this, line.quantiles.q0, line.quantiles.q4, line, "band"), band(this, line.quantiles.q1, line.quantiles.q3, line, "band inner"));
    } else if (line.high) {
      made.push(band(this, line.low || line.value, line.high, line, "band"));
    }
    if (this.sparse(line)) {
      for (let i = this.first; i <= this.last; i++) {
        if (Number.isFinite(line.value[i])) made.push(svg("circle", { class: `mark f${line.colour}`, cx: this.x(middle[i]), cy: this.y(line.value[i]), r: 3 }));
      }
      return made;
    }
    if (line.stacked) made.push(svg("path", { class: `area f${line.colour}`, d: blocks(this, line) }));
    made.push(svg("path", { class: `line l${line.colour}`, d: linePath(this, this.drawn(line)) }));
    return made;
  }

  point() {
    const { counts, at, from, until } = this.axis;
    this.lines.forEach((line) => { line.now.textContent = said(this.about, line.value[at]); });
    if (!this.pointer) return;
    const time = counts.middle[at];
    if (time < from || time > until) { this.pointer.replaceChildren(); return; }
    const x = this.x(time);
    const dots = this.visible().filter((line) => Number.isFinite(this.drawn(line)[at])).map((line) =>
      svg("circle", { class: `dot f${line.colour}`, cx: x, cy: this.y(this.drawn(line)[at]), r: 4 }));
    this.pointer.replaceChildren(svg("line", { class: "cursor", x1: x, x2: x, y1: TOP, y2: HEIGHT - BOTTOM }), ...dots);
  }

  select(from, until) {
    if (from === null) { this.box.setAttribute("width", 0); return; }
    const [left, right] = [this.x(from), this.x(until)].sort((a, b) => a - b);
    this.box.setAttribute("x", left);
    this.box.setAttribute("width", right - left);
  }

  summary() {
    const { axis } = this;
    const lines = this.visible().map((line) => {
      let low = Infinity, high = -Infinity;
      for (let i = this.first; i <= this.last; i++) if (!Number.isNaN(line.value[i])) { low = Math.min(low, line.value[i]); high = Math.max(high, line.value[i]); }
      return high >= low ? `${line.label} from ${said(this.about, low)} to ${said(this.about, high)}` : `${line.label}: no values`;
    });
    return `${this.about.title}${this.about.unit ? ` in ${this.about.unit}` : ""}, ${axis.says(this.first)} to ${axis.says(this.last)}: ${lines.join("; ")}.`;
  }

  save() {
    const { counts } = this.axis;
    const columns = ["window", "window_start", "window_end"], series = [];
    for (const line of this.lines) {
      const sides = line.quantiles
        ? [["minimum", line.quantiles.q0], ["quartile 1", line.quantiles.q1], ["median", line.value], ["quartile 3", line.quantiles.q3], ["maximum", line.quantiles.q4]]
        : [["", line.value], ["low", line.low], ["high", line.high]];
      for (const [side, values] of sides) if (values) { columns.push(side ? `${line.label} (${side})` : line.label); series.push(values); }
    }
    const rows = Array.from(counts.window, (window, i) => [
      window, new Date(counts.start[i]).toISOString(), new Date(counts.end[i]).toISOString(), ...series.map((values) => values[i])]);
    download(this.about.title, columns, rows);
  }
}

// Outlines of lines, columns and bands: one point for each window shown.

// A command for each window shown; gaps where there is no value.
function linePath(chart, values) {
  const { start, end, middle } = chart.axis.counts;
  const written = [];
  let pen = false;
  for (const i of steps(chart, values)) {
    if (!Number.isFinite(values[i])) { pen = false; continue; }
    const y = chart.y(values[i]).toFixed(1);
    if (chart.about.style === "step") written.push(`${pen ? "L" : "M"}${chart.x(start[i]).toFixed(1)} ${y}H${chart.x(end[i]).toFixed(1)}`);
    else written.push(`${pen ? "L" : "M"}${chart.x(middle[i]).toFixed(1)} ${y}`);
    pen = true;
  }
  return written.join("");
}

// One column a window, from the base of a stacked line to its top.
function blocks(chart, line) {
  const { start, end } = chart.axis.counts;
  const shown = steps(chart, line.value).filter((i) => Number.isFinite(line.top[i]));
  return shown.map((i) => `M${chart.x(start[i]).toFixed(1)} ${chart.y(line.base[i]).toFixed(1)}V${chart.y(line.top[i]).toFixed(1)}H${chart.x(end[i]).toFixed(1)}V${chart.y(line.base[i]).toFixed(1)}Z`).join("");
}

// The windows to draw: all, or the lowest and the highest of each pixel where there are many more than pixels.
function steps(chart, values) {
  const n = chart.last - chart.first + 1, per = Math.floor(n / chart.width);
  if (per < 2) return Array.from({ length: n }, (_, i) => chart.first + i);
  const chosen = [];
  for (let i = chart.first; i <= chart.last; i += per * 2) {
    let low = i, high = i;
    for (let j = i; j < Math.min(i + per * 2, chart.last + 1); j++) {
      if (values[j] < values[low]) low = j;
      if (values[j] > values[high]) high = j;
    }
    chosen.push(...[...new Set([low, high])].sort((a, b) => a - b));
  }
  return chosen;
}

function band(chart, low, high, line, name) {
  const { middle } = chart.axis.counts;
  const above = [], below = [];
  for (const i of steps(chart, high)) {
    if (!Number.isFinite(low[i]) || !Number.isFinite(high[i])) continue;
    above.push(`${chart.x(middle[i]).toFixed(1)} ${chart.y(high[i]).toFixed(1)}`);
    below.unshift(`${chart.x(middle[i]).toFixed(1)} ${chart.y(low[i]).toFixed(1)}`);
  }
  return svg("path", { class: `${name} f${line.colour}`, d: above.length ? `M${above.join("L")}L${below.join("L")}Z` : "" });
}
