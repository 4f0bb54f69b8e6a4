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
    return totals.indexOf(totals.reduce((most, total) => Math.max(most, total), -Infinity));
  }

  marginOf(row, cell) {
    return this.margin.length === this.nWindows ? this.margin[row] : this.margin[row * this.nCells + cell];
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
