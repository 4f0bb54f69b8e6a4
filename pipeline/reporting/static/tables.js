// Sortable tables, and the two that are made by the script: windows and cells.

function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = html("button", { type: "button" }, head.textContent);
    head.replaceChildren(button);
    if (table.tBodies[0].rows[0]?.cells[column]?.dataset.value !== undefined) head.classList.add("number");
    button.addEventListener("click", () => {
      const upwards = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", upwards ? "ascending" : "descending");
      sortRows(table, column, upwards);
    });
  });
}

function sortRows(table, column, upwards) {
  const key = (row) => {
    const cell = row.cells[column];
    return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
  };
  const compare = (a, b) => {
    if (typeof a === "string" || typeof b === "string") return String(a).localeCompare(String(b), "en", { numeric: true });
    // What has no value comes last, whichever way.
    if (Number.isNaN(a) || Number.isNaN(b)) return (Number.isNaN(a) - Number.isNaN(b)) * (upwards ? 1 : -1);
    return a - b || 0;
  };
  const rows = [...table.tBodies[0].rows].map((row) => [key(row), row]);
  rows.sort(([a], [b]) => (upwards ? compare(a, b) : compare(b, a)));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

// columns: [{title, number, share, people}]; rows: arrays of text, number or node
function buildTable(caption, columns, rows) {
  const body = rows.map((row) => html("tr", {}, ...row.map((value, i) =>
    columns[i].number ? html("td", { class: "number", "data-value": value }, said(columns[i], value)) : html("td", {}, value))));
  const table = html("table", { class: "sortable" },
    html("caption", {}, caption),
    html("thead", {}, html("tr", {}, ...columns.map((column) => html("th", { scope: "col" }, column.title)))),
    html("tbody", {}, ...body));
  makeSortable(table);
  return table;
}

// A table that is made when it is opened first: thousands of rows cost nothing until then.
function lazyTable(title, make, save) {
  const place = html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": title });
  const details = html("details", {}, html("summary", {}, title), html("p", {}, csvButton(title, save)), place);
  details.addEventListener("toggle", () => { if (details.open && !place.firstChild) place.append(make()); });
  return details;
}

function windowsTable(axis) {
  const { counts } = axis;
  const released = counts.along(counts.released, -1);
  const truth = counts.truth && counts.along(counts.truth, -1);
  const errors = counts.truth && counts.errors();
  const columns = [
    { title: "Window", number: true }, { title: "Begins" }, { title: "Landmark" }, { title: "Action" }, { title: "Charge, ε (nats)", number: true }, { title: "Released", number: true, people: true },
    ...(truth ? [{ title: "True", number: true, people: true }, { title: "Mean error a cell", number: true, people: true }] : [])];
  const row = (i, time) => [counts.window[i], time, counts.landmark[i] ? "landmark" : "", counts.actions[counts.action[i]], counts.epsilon[i], released[i], ...(truth ? [truth[i], errors[i]] : [])];
  const all = Array.from({ length: counts.nWindows }, (_, i) => i);
  return lazyTable(`All windows (${counts.nWindows.toLocaleString("en")})`,
    () => buildTable("What was released in each window, over all cells", columns, all.map((i) => row(i, axis.says(i)))),
    () => download("windows", columns.map((c) => c.title), all.map((i) => row(i, new Date(counts.start[i]).toISOString()))));
}

function cellsTable(axis, metrics) {
  const { counts } = axis;
  const mean = (matrix, cell) => {
    const values = counts.along(matrix, cell).filter((v) => !Number.isNaN(v));
    return values.reduce((a, b) => a + b, 0) / values.length;
  };
  const columns = [{ title: "Cell" }, { title: "Mean released", number: true, people: true }, ...(counts.truth ? [{ title: "Mean true", number: true, people: true }] : []), ...metrics.map((m) => ({ title: m.name, number: true, share: m.share }))];
  const rows = () => counts.cells.map((name, cell) => [name, mean(counts.released, cell), ...(counts.truth ? [mean(counts.truth, cell)] : []), ...metrics.map((m) => m.value[cell])]);
  const make = () => buildTable("Each cell over the whole run", columns, rows().map(([name, ...rest], cell) =>
    [html("button", { type: "button", onclick: () => axis.choose(cell) }, name), ...rest]));
  return lazyTable(`All cells (${counts.nCells.toLocaleString("en")})`, make, () => download("cells", columns.map((c) => c.title), rows()));
}
