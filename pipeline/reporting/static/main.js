// Assembly of the page, repeated when a live run has newer data.

const UNUSUAL = "unusual, and believed";

function countChart(axis) {
  const { counts } = axis;
  const chooser = html("select", { "aria-label": "Cell", onchange: () => axis.choose(Number(chooser.value)) },
    html("option", { value: -1 }, "All cells together"), ...counts.cells.map((name, cell) => html("option", { value: cell }, name)));
  const lines = () => {
    const { cell } = axis;
    const released = { label: "released", ink: 0, value: counts.along(counts.released, cell) };
    if (cell >= 0 && counts.margin.some((m) => m > 0)) {
      const side = (sign) => released.value.map((v, i) => Math.max(v + sign * counts.marginOf(i, cell), 0));  // no count is negative
      Object.assign(released, { low: side(-1), high: side(1) });
    }
    const unusual = counts.alarm ? [{ label: UNUSUAL, ink: 1, dots: true, value: counts.unusual(cell) }] : [];
    return [...(counts.truth ? [{ label: "true", value: counts.along(counts.truth, cell), ink: "t" }] : []), released, ...unusual];
  };
  const unit = () => `${counts.counted} in ${axis.cell >= 0 ? counts.cells[axis.cell] : "all cells together"}`;
  chooser.value = axis.cell;
  const chart = new Chart(axis, {
    id: "counts", people: true, title: counts.truth ? "True and released counts" : "Released counts", unit: unit(), lines: lines(), tools: [chooser],
    note: "Shaded columns are landmarks. For a single cell the band holds 95 % of the noise; after a filter, 95 % of what the count may be." + (counts.alarm ? ` A dot is a count that is ${UNUSUAL}: neither the prediction nor the noise explains it, and the release follows it.` : "") + " Drag to zoom, click to look at a window, double-click to see all.",
  });
  axis.on("cell", () => { chooser.value = axis.cell; chart.setLines(lines(), unit()); });
  return chart;
}

function maps(axis, geometry, outlines) {
  const { counts } = axis;
  const { released, truth, nCells } = counts;
  const shapes = shapesOf(geometry, nCells, outlines);
  axis.view = new MapView(shapes.box);
  const mean = (value) => (first, last, cell) => {
    let total = 0, n = 0;
    for (let row = first; row <= last; row++) { const v = value(row, cell); if (!Number.isNaN(v)) { total += v; n++; } }
    return n ? total / n : NaN;
  };
  const of = (matrix) => (row, cell) => matrix[row * nCells + cell];
  let most = 0;
  for (const values of [released, truth || []]) for (const v of values) if (v > most) most = v;
  const breaks = truth ? squareBreaks(truth, released) : squareBreaks(released);
  const quantities = [{ title: "Released", unit: counts.counted, scheme: "s", signed: released.some((v) => v < 0), breaks, most, value: of(released), mean: mean(of(released)), marked: counts.alarm && of(counts.alarm) }];
  if (truth) {
    const apart = (row, cell) => released[row * nCells + cell] - truth[row * nCells + cell];
    quantities.push({ title: "True", unit: counts.counted, scheme: "s", breaks, most, value: of(truth), mean: mean(of(truth)) });
    quantities.push({ title: "Error", unit: `${counts.counted}, released − true`, scheme: "d", breaks: evenBreaks(released.map((v, i) => v - truth[i])), value: apart, mean: mean(apart) });
  }
  const made = quantities.map((about) => new CellMap(axis, shapes, about));
  const switches = [["This window", false], ["Mean over the stretch shown", true]].map(([label, averaged]) => html("button", {
    type: "button", class: "plain", "aria-pressed": String(!averaged),
    onclick: (event) => {
      switches.forEach((other) => other.setAttribute("aria-pressed", String(other === event.currentTarget)));
      made.forEach((map) => { map.averaged = averaged; map.colour(); });
    },
  }, label));
  const n = shapes.filter((shape) => !shape).length;
  const where = !geometry ? "No coordinates are known: tiles stand for the cells, in the order of the list. "
    : n ? `${n === 1 ? "1 cell has" : `${n} cells have`} no place on the map (${counts.cells.filter((_, cell) => !shapes[cell]).slice(0, 3).join(", ")}${n > 3 ? " …" : ""}). ` : "";
  const unusual = counts.alarm ? `Cells with a dashed edge are ${UNUSUAL}. ` : "";
  const note = `${where}${unusual}Click a cell to see its counts over time. Pinch, double-click or scroll with Ctrl to zoom, drag to move.`;
  return html("section", { id: "maps" }, html("h2", {}, "Where"),
    html("p", {}, note), html("p", { class: "buttons", role: "group", "aria-label": "Values of the maps" }, ...switches), html("div", { class: "maps" }, ...made.map((map) => map.node)));
}

function explore(place, data) {
  const counts = new Counts(data.counts);
  const axis = new TimeAxis(counts, data.time_zone);
  const totals = counts.along(counts.released, -1);
  axis.cell = counts.busiest();
  axis.at = largestAt(totals);
  const chart = countChart(axis);
  const charts = [chart];
  if (counts.truth) {
    charts.push(new Chart(axis, { id: "error", people: true, title: "Error", unit: `${counts.counted} a cell, mean absolute`, lines: [{ label: "mean absolute error", value: counts.errors() }] }));
  }
  charts.push(...data.utility.map((about) => new Chart(axis, about)));
  const books = data.accounts.map((about) => new Chart(axis, about));
  const where = maps(axis, data.geometry, data.outlines), isPlaced = Boolean(data.geometry);
  place.replaceChildren(
    toolbar(axis, totals), ...(isPlaced ? [where] : []), html("h2", {}, "Over time"), ...charts.map((c) => c.node),
    ...(books.length ? [html("h2", {}, "What it cost"), ...books.map((c) => c.node)] : []),
    ...(isPlaced ? [] : [where]), windowsTable(axis), cellsTable(axis, data.cell_metrics));
  return axis;
}

function themeButton() {
  const root = document.documentElement;
  const isDark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = html("button", { type: "button", class: "plain theme", onclick: () => { root.dataset.theme = isDark() ? "light" : "dark"; name(); } });
  const name = () => { button.textContent = isDark() ? "Light" : "Dark"; button.setAttribute("aria-label", `${button.textContent} theme`); };
  name();
  return button;
}

function copyButtons() {
  document.querySelectorAll(".copyable").forEach((place) => {
    const button = html("button", { type: "button", class: "plain", onclick: async () => {
      await navigator.clipboard.writeText(place.querySelector("pre").textContent);
      button.textContent = "Copied";
    } }, "Copy");
    if (navigator.clipboard) place.append(button);
  });
}

const dataOf = (page) => unpack(JSON.parse(page.getElementById("report-data").textContent));

function show(data) {
  document.querySelectorAll("table.sortable").forEach((table) => {
    makeSortable(table);
    const title = table.caption.textContent;
    const columns = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
    const text = (cell) => cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
    const rows = () => [...table.tBodies[0].rows].map((row) => [...row.cells].map(text));
    table.parentNode.before(html("p", { class: "above" }, csvButton(title, () => download(title, columns, rows()))));
  });
  copyButtons();
  if (data.frontier) {
    const kind = data.frontier.measures.length > 1 ? Frontier : Ranking;
    document.getElementById("frontier").replaceChildren(new kind(data.frontier).node);
  }
  (data.figures || []).forEach(({ title, columns, rows }, i) => {
    const tools = html("div", { class: "tools" }, csvButton(title, () => download(title, columns, rows)));
    document.querySelectorAll(".picture figcaption")[i].append(tools);
  });
  const place = document.getElementById("explore");
  const axis = place && data.counts ? explore(place, data) : null;
  if (place && data.traces) place.replaceChildren(...tracesView(data.traces));
  document.documentElement.dataset.ready = "";
  return { data, axis };
}

// The element with the focus, to be found again by its name in a page that took the place of this one.
function focusedAgain() {
  const focused = document.activeElement, label = focused?.getAttribute("aria-label");
  const named = () => [...document.querySelectorAll("[aria-label]")].filter((node) => node.getAttribute("aria-label") === label);
  const place = named().indexOf(focused);
  return () => named()[place]?.focus({ preventScroll: true });
}

// A live page asks now and then whether there is more, and keeps what the reader was looking at.
async function follow(shown) {
  const seconds = 2;
  while (shown.data.live && !shown.data.over) {
    await new Promise((wake) => setTimeout(wake, seconds * 1000));
    const answer = await fetch(location.pathname, { cache: "no-store" }).catch(() => null);
    if (answer === null) return;
    if (!answer.ok) continue;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (page.getElementById("report-data").textContent === document.getElementById("report-data").textContent) continue;
    // At once, so that the page is never seen without its charts.
    const data = await dataOf(page), { axis } = shown, focusAgain = focusedAgain();
    for (const id of ["content", "report-data"]) document.getElementById(id).replaceChildren(...page.getElementById(id).childNodes);
    shown = show(data);
    focusAgain();
    if (!axis || !shown.axis) continue;
    const wasAll = axis.from === axis.all[0] && axis.until === axis.all[1];
    if (!wasAll) shown.axis.show(axis.from, axis.until);
    if (axis.view.scale > 1) shown.axis.view.show(axis.view);
    shown.axis.choose(axis.cell);
    shown.axis.look(axis.at === axis.counts.nWindows - 1 ? shown.axis.counts.nWindows - 1 : axis.at);
  }
}

document.body.prepend(themeButton());
dataOf(document).then(show).then(follow);
