// Maps of the cells, one for each quantity, coloured in nine steps; all follow the current window.

const STEPS = 9;

// Values enough for a quantile, spread over all windows and cells: sorting a million takes a second.
function sample(values) {
  const below = 2 ** 32 * (100000 / values.length);
  return Float64Array.from(values.filter((_, i) => Math.imul(i, 2654435761) >>> 0 < below));
}

// Upper ends of all steps but the last, growing with the square so that a few busy cells do not hide the rest. They hold
// for all matrices given: noise larger than every count is seen beside the counts, and does not fill the map.
function squareBreaks(...matrices) {
  const tops = matrices.map((values) => {
    const sorted = sample(values).filter((v) => v > 0).sort();
    return sorted.length ? sorted[Math.floor(0.995 * (sorted.length - 1))] : 0;
  });
  const most = Math.max(...tops) || 1;
  const breaks = Array.from({ length: STEPS - 1 }, (_, i) => Number((most * ((i + 1) / STEPS) ** 2).toPrecision(most < 100 ? 1 : 2)));
  return [...new Set(breaks)];
}

// Steps of equal width around 0, as far as 98 % of all values reach.
function evenBreaks(values) {
  const sizes = sample(values).map(Math.abs).filter((v) => !Number.isNaN(v)).sort();
  const ticks = niceTicks(0, sizes[Math.floor(sizes.length * 0.98)] || 1, STEPS / 2);
  return Array.from({ length: STEPS - 1 }, (_, i) => ticks[1] * (i - (STEPS - 2) / 2));
}

class CellMap {
  // about: {title, unit, scheme: "s" or "d", signed: whether some values are below 0, breaks, most: the largest value, value(row, cell), mean(first, last, cell), marked(row, cell)}
  constructor(axis, shapes, about) {
    Object.assign(this, { axis, about, averaged: false });
    const view = axis.view;
    this.cells = axis.counts.cells.map((name, cell) => this.shape(shapes[cell], cell));
    this.drawing = svg("svg", { class: "map", role: "img" }, ...this.cells.filter(Boolean));
    // On top of the cells, whose colours would hide them.
    this.outlines = shapes.outlines ? svg("path", { class: "outlines", d: shapes.outlines }) : null;
    if (this.outlines) this.drawing.append(this.outlines);
    const tools = html("div", { class: "tools" }, ...view.buttons(), csvButton(`${about.title}, all cells`, () => this.save()));
    this.now = html("span", { class: "unit" });
    this.node = html("figure", { "data-map": about.title }, html("figcaption", {}, html("h3", {}, about.title), this.now, tools),
      zoomable(this.drawing, view, `Map ${about.title}`), this.scale());
    // Points grow more slowly than the distances between them, so that they come apart.
    const points = this.cells.flatMap((node, cell) => (shapes[cell]?.r ? [[node, shapes[cell].r]] : []));
    view.listeners.push(() => points.forEach(([node, radius]) => node.setAttribute("r", radius / Math.sqrt(view.scale))));
    axis.on("cursor", () => { if (!this.averaged) this.colour(); });
    axis.on("range", () => { if (this.averaged) this.colour(); });
    axis.on("cell", () => this.mark());
    this.colour();
  }

  shape(place, cell) {
    if (!place) return null;
    const attributes = { class: "cell", onclick: () => this.axis.choose(cell) };
    const node = place.path ? svg("path", { ...attributes, d: place.path, "fill-rule": "evenodd" }) : svg("circle", { ...attributes, cx: place.x, cy: place.y, r: place.r });
    this.titles ??= [];
    this.titles[cell] = svg("title", {});
    node.append(this.titles[cell]);
    return node;
  }

  valueOf(cell) {
    if (!this.averaged) return this.about.value(this.axis.at, cell);
    const [first, last] = this.axis.shown();
    return this.about.mean(first, last, cell);
  }

  step(value) {
    if (Number.isNaN(value)) return "none";
    const { breaks, scheme, signed } = this.about;
    if (signed && value < 0) return "below";
    let at = 0;
    while (at < breaks.length && value > breaks[at]) at++;
    // Fewer breaks than steps: spread over the whole ramp.
    return scheme + Math.round((at * (STEPS - 1)) / breaks.length);
  }

  colour() {
    let low = Infinity, high = -Infinity;
    this.cells.forEach((node, cell) => {
      if (!node) return;
      const value = this.valueOf(cell);
      const unusual = !this.averaged && this.about.marked?.(this.axis.at, cell);
      node.setAttribute("class", `cell ${this.step(value)}${cell === this.axis.cell ? " chosen" : ""}${unusual ? " unusual" : ""}`);
      this.titles[cell].textContent = `${this.axis.counts.cells[cell]}: ${said(PEOPLE, value)}${unusual ? `, ${UNUSUAL}` : ""}`;
      if (value < low) low = value;
      if (value > high) high = value;
    });
    const what = this.averaged ? "mean over the stretch shown" : this.axis.says(this.axis.at);
    const range = high > low ? `${said(PEOPLE, low)} to ${said(PEOPLE, high)}` : high === low ? `${said(PEOPLE, low)} in every cell` : "no values";
    this.flat = high > low ? null : range;
    this.drawing.setAttribute("aria-label", `Map of the cells, ${this.about.title}, ${what}: ${range} ${this.about.unit}.`);
    this.mark();
  }

  mark() {
    const { cell, counts } = this.axis;
    this.cells.forEach((node, i) => node && node.classList.toggle("chosen", i === cell));
    // What is drawn last lies on top, with its whole outline.
    if (cell >= 0 && this.cells[cell]) this.drawing.insertBefore(this.cells[cell], this.outlines);
    // The value first: a long name may be cut off.
    this.now.textContent = this.flat ?? (cell >= 0 ? `${said(PEOPLE, this.valueOf(cell))} in ${counts.cells[cell]}` : this.about.unit);
  }

  scale() {
    const { breaks, scheme, signed, most } = this.about;
    const ramp = Array.from({ length: breaks.length + 1 }, (_, i) => scheme + Math.round((i * (STEPS - 1)) / breaks.length));
    const edges = signed ? [0, ...breaks] : breaks;
    const classes = signed ? ["below", ...ramp] : ramp;
    const wide = 240 / classes.length, every = Math.ceil(edges.length / 5);
    const steps = classes.map((name, i) => svg("rect", { class: name, x: i * wide, y: 2, width: wide, height: 9 }));
    // Named from both ends where there are two sides.
    const place = (i) => (scheme === "d" ? Math.min(i, edges.length - 1 - i) : i);
    // The last class ends with the largest value, where there is one.
    const isClosed = most > edges.at(-1), room = isClosed ? 240 - 30 : 240;
    const labels = edges.map((value, i) => (place(i) % every || (i + 1) * wide > room ? null : svg("text", { x: (i + 1) * wide, y: 24, "text-anchor": "middle" }, short(value))));
    if (isClosed) labels.push(svg("text", { x: 240, y: 24, "text-anchor": "end" }, short(Math.round(most))));
    const said = `Colours change at ${edges.map((value) => short(value)).join(", ")}${isClosed ? `, up to ${short(Math.round(most))}` : ""}`;
    return svg("svg", { class: "scale", viewBox: "0 0 240 30", role: "img", "aria-label": said }, ...steps, ...labels);
  }

  save() {
    const { counts } = this.axis;
    const what = this.averaged ? "mean over the stretch shown" : `window ${counts.window[this.axis.at]}`;
    download(`map-${this.about.title}`, ["cell", `${this.about.title} (${what})`], counts.cells.map((name, cell) => [name, this.valueOf(cell)]));
  }
}

// A flat drawing of places, at most 1000 wide and 1000 ÷ tallness high: where a place is in it, and its size, also in degrees of latitude.
function projection(points, tallness) {
  const [west, south] = [0, 1].map((i) => points.reduce((least, p) => Math.min(least, p[i]), Infinity));
  const [east, north] = [0, 1].map((i) => points.reduce((most, p) => Math.max(most, p[i]), -Infinity));
  const narrow = Math.cos(((south + north) / 2) * Math.PI / 180);
  const degrees = [(east - west) * narrow, north - south];
  const zoom = 1000 / Math.max(degrees[0], degrees[1] * tallness, 1e-6);
  return { flat: ([longitude, latitude]) => [(longitude - west) * narrow * zoom, (north - latitude) * zoom], size: degrees.map((side) => side * zoom), degrees };
}

// Outlines in a flat drawing 1000 wide; cells without coordinates become tiles in the order of the list.
function shapesOf(places, nCells, outlines) {
  if (!places) {
    const columns = Math.ceil(Math.sqrt(nCells * 1.4)), size = 1000 / columns;
    const tiles = Array.from({ length: nCells }, (_, i) => {
      const [x, y] = [(i % columns) * size, Math.floor(i / columns) * size];
      return { path: `M${x} ${y}h${size}v${size}h${-size}Z` };
    });
    return Object.assign(tiles, { box: { x: -4, y: -4, width: 1008, height: Math.ceil(nCells / columns) * size + 8 } });
  }
  const points = places.flatMap((place) => place.rings ? place.rings.flat() : place.point ? [place.point] : []);
  const { flat, size: [width, height] } = projection(points, 0.75);
  const radius = Math.max(6, Math.min(26, 420 / Math.sqrt(nCells)));
  const shapes = places.map((place) => {
    if (place.rings) return { path: place.rings.map((ring) => `M${ring.map((p) => flat(p).map((v) => v.toFixed(1)).join(" ")).join("L")}Z`).join("") };
    if (!place.point) return null;
    const [x, y] = flat(place.point);
    return { x, y, r: radius };
  });
  shapes.outlines = outlines ? pathOf(outlines, flat) : null;
  const edge = radius + 4;
  return Object.assign(shapes, { box: { x: -edge, y: -edge, width: width + 2 * edge, height: height + 2 * edge } });
}

// Lines that came as steps of whole units, as one path.
function pathOf({ origin, unit, sizes, steps }, flat) {
  let at = 0;
  const line = (size) => {
    let x = 0, y = 0;
    return Array.from({ length: size }, () => {
      x += steps[at++]; y += steps[at++];
      return flat([origin[0] + x * unit, origin[1] + y * unit]).map((v) => v.toFixed(1)).join(" ");
    });
  };
  return Array.from(sizes, (size) => `M${line(size).join("L")}`).join("");
}

// Zooming and moving of maps: those that share a view move together.

const CLOSEST = 64;

class MapView {
  constructor(box) {
    this.listeners = [];
    this.reset(box);
  }

  get scale() { return this.box.width / this.width; }

  reset(box) {
    this.box = box;
    this.show(box);
  }

  // A stretch in the proportions of the whole and within its edges; says whether that is another one than before.
  show({ x, y, width }) {
    const { box, x: oldX, y: oldY, width: oldWidth } = this;
    const within = (low, value, high) => Math.min(Math.max(value, low), high);
    this.width = within(box.width / CLOSEST, width, box.width);
    this.height = (this.width * box.height) / box.width;
    this.x = within(box.x, x, box.x + box.width - this.width);
    this.y = within(box.y, y, box.y + box.height - this.height);
    this.listeners.forEach((act) => act());
    return [this.x - oldX, this.y - oldY, this.width - oldWidth].some((by) => Math.abs(by) > 1e-6 * this.width);
  }

  // A place keeps its place on the screen, the middle if none is given.
  zoom(factor, { x, y } = { x: this.x + this.width / 2, y: this.y + this.height / 2 }) {
    const by = Math.min(Math.max(1 / factor, this.scale / CLOSEST), this.scale);
    return this.show({ x: x - (x - this.x) * by, y: y - (y - this.y) * by, width: this.width * by });
  }

  move(x, y) { return this.show({ x: this.x + x, y: this.y + y, width: this.width }); }

  buttons() {
    return [plainButton("+", "Zoom maps in", () => this.zoom(2)), plainButton("−", "Zoom maps out", () => this.zoom(0.5)),
      plainButton("All", "Whole area of the maps", () => this.show(this.box))];
  }
}

// A drawing that shows a view, and changes it by wheel, pinch, drag, double click and keys. What would change nothing is
// left to the page, and so is the wheel unless the map has the focus: nobody is caught in a map.
function zoomable(drawing, view, name) {
  const at = (event) => new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing.getScreenCTM().inverse());
  const apart = (one, other) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
  const taken = (event, changed) => { if (changed) event.preventDefault(); };
  const step = (x, y) => view.move((x * view.width) / 5, (y * view.height) / 5);
  const keys = {
    "+": () => view.zoom(2), "=": () => view.zoom(2), "-": () => view.zoom(0.5), 0: () => view.show(view.box),
    ArrowLeft: () => step(-1, 0), ArrowRight: () => step(1, 0), ArrowUp: () => step(0, -1), ArrowDown: () => step(0, 1),
  };
  const held = new Map();
  let dragged = false;
  const release = (event) => held.delete(event.pointerId);
  const ground = html("div", {
    class: "ground", tabindex: 0, role: "group", "aria-label": `${name}: plus and minus zoom, arrows move, 0 shows all`,
    onkeydown: (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey) taken(event, keys[event.key]?.());
    },
    onwheel: (event) => {
      if (event.ctrlKey || document.activeElement === ground) taken(event, view.zoom(2 ** (-Math.sign(event.deltaY) / 2), at(event)));
    },
    ondblclick: (event) => view.zoom(event.shiftKey ? 0.5 : 2, at(event)),
    onpointerdown: (event) => {
      if (event.button !== 0) return;
      held.set(event.pointerId, event);
      dragged = held.size > 1;
    },
    onpointermove: (event) => {
      const before = held.get(event.pointerId);
      if (!before) return;
      if (!event.buttons) { release(event); return; }
      if (!dragged && apart(before, event) < 5) return;  // still a click
      const other = [...held.values()].find((one) => one.pointerId !== event.pointerId);
      if (!dragged) drawing.setPointerCapture(event.pointerId);
      dragged = true;
      held.set(event.pointerId, event);
      if (other) {
        view.zoom(apart(event, other) / Math.max(apart(before, other), 1), at(other));
      } else {
        const [from, to] = [at(before), at(event)];
        view.move(from.x - to.x, from.y - to.y);
      }
    },
    onpointerup: release,
    onpointercancel: release,
  }, drawing);
  drawing.addEventListener("click", (event) => { if (dragged) event.stopPropagation(); }, true);
  const draw = () => {
    drawing.setAttribute("viewBox", `${view.x} ${view.y} ${view.width} ${view.height}`);
    ground.classList.toggle("near", view.scale > 1.001);
  };
  view.listeners.push(draw);
  draw();
  return ground;
}
