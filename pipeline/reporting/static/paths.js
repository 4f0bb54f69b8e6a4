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
