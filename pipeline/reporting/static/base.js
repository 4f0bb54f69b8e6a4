"use strict";
// Elements, numbers, downloads and the data. Text from the data only ever becomes a text node or an attribute value.

const SVG = "http://www.w3.org/2000/svg";

function make(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const html = (name, attributes, ...children) => make(document.createElement(name), attributes, children);
const svg = (name, attributes, ...children) => make(document.createElementNS(SVG, name), attributes, children);

function short(value, digits = 3) {
  if (value === null || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size < 1e-12) return "0";
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace("e+", "e").replace(/-/g, "−");
  const rounded = size >= 100 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: digits };
  return value.toLocaleString("en", rounded).replace("-", "−");
}

// A value as its measure is said: a share in percent, whole ones from ten on; people to two digits.
function said({ share, people }, value) {
  if (!share || !Number.isFinite(value)) return short(value, people ? 2 : 3);
  return `${short(Math.abs(value) < 0.1 ? 100 * value : Math.round(100 * value), 2)} %`;
}

// 32-bit numbers carry seven digits; what follows them is not data.
const exact = (value) => (Number.isNaN(value) ? "" : String(Number(value.toPrecision(7))));

function csvField(value) {
  let text = typeof value === "number" ? exact(value) : String(value);
  // A spreadsheet would run text that begins like a formula.
  if (typeof value !== "number" && /^[=+\-@\t\r]/.test(text)) text = "'" + text;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csvText(columns, rows) {
  return [columns, ...rows].map((row) => row.map(csvField).join(",")).join("\r\n") + "\r\n";
}

function download(name, columns, rows) {
  const address = URL.createObjectURL(new Blob([csvText(columns, rows)], { type: "text/csv;charset=utf-8" }));
  html("a", { href: address, download: name.replace(/[^\w.-]+/g, "-") + ".csv" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

const plainButton = (label, name, act) => html("button", { type: "button", class: "plain", "aria-label": name, title: name, onclick: act }, label);

const csvButton = (title, act) =>
  html("button", { type: "button", class: "plain download", "aria-label": `Download the data of ${title} as CSV`, onclick: act }, "CSV");

const PEOPLE = { people: true };

function niceTicks(low, high, count) {
  const rough = (high - low) / count || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks;
}

// Data of the report: unpacking of arrays, and accessors of counts.

const ARRAYS = { i1: Int8Array, i2: Int16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };

async function unpack(value) {
  if (value === null || typeof value !== "object") return value;
  if (typeof value.packed === "string") {
    const bytes = Uint8Array.from(atob(value.packed), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new ARRAYS[value.type](await new Response(stream).arrayBuffer());
  }
  const entries = await Promise.all(Object.entries(value).map(async ([key, child]) => [key, await unpack(child)]));
  return Array.isArray(value) ? entries.map(([, child]) => child) : Object.fromEntries(entries);
}

const largestAt = (values) => values.indexOf(values.reduce((most, value) => Math.max(most, value), -Infinity));

class Counts {
  constructor(raw) {
    Object.assign(this, raw);
    this.nWindows = raw.window.length;
    this.nCells = raw.cells.length;
    this.middle = Float64Array.from(raw.start, (start, i) => (start + raw.end[i]) / 2);
  }

  // One number a window; cell −1 is all cells together.
  along(matrix, cell) {
    const { nWindows, nCells } = this;
    return Float64Array.from({ length: nWindows }, (_, row) => {
      if (cell >= 0) return matrix[row * nCells + cell];
      let total = 0;
      for (let column = 0; column < nCells; column++) total += matrix[row * nCells + column] || 0;
      return total;
    });
  }

  // The cell with the most people released over the whole run.
  busiest() {
    const totals = new Float64Array(this.nCells);
    this.released.forEach((value, i) => { totals[i % this.nCells] += value || 0; });
    return largestAt(totals);
  }

  marginOf(row, cell) {
    return this.margin.length === this.nWindows ? this.margin[row] : this.margin[row * this.nCells + cell];
  }

  // What was released of a cell where that is unusual and believed, NaN elsewhere; of all cells together where one is.
  unusual(cell) {
    const any = this.along(this.alarm, cell);
    return this.along(this.released, cell).map((value, row) => (any[row] > 0 ? value : NaN));
  }

  // Mean absolute difference of released and true counts over the active cells of each window.
  errors() {
    const { nWindows, nCells, released, truth } = this;
    return Float64Array.from({ length: nWindows }, (_, row) => {
      let total = 0, n = 0;
      for (let at = row * nCells; at < (row + 1) * nCells; at++) {
        const apart = Math.abs(released[at] - truth[at]);
        if (!Number.isNaN(apart)) { total += apart; n++; }
      }
      return n ? total / n : NaN;
    });
  }
}
