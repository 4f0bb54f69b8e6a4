// One person's released and true way, drawn to scale.

function tracesView(data) {
  const starts = [0];
  data.size.forEach((n) => starts.push(starts.at(-1) + n));
  const chooser = html("select", { "aria-label": "Person", onchange: () => draw() }, ...data.people.map((name, i) => html("option", { value: i }, name)));
  const drawing = svg("svg", { class: "way", role: "img" }), view = new MapView({ x: 0, y: 0, width: 1, height: 1 }), size = html("span", { class: "unit" });
  const range = () => { const i = Number(chooser.value); return [starts[i], starts[i + 1]]; };
  const kinds = [["released", data.released, 0], ...(data.truth ? [["true", data.truth, "t"]] : [])];

  const draw = () => {
    const [first, last] = range();
    const points = (positions) => Array.from({ length: last - first }, (_, i) => [positions[2 * (first + i)], positions[2 * (first + i) + 1]]);
    const ways = kinds.map(([, positions]) => points(positions));
    const { flat, size: [width, height], degrees: [across, up] } = projection(ways.flat(), 1.6);
    const kilometres = (degrees) => ((degrees * 40030) / 360).toFixed(1);
    view.reset({ x: -12, y: -12, width: width + 24, height: height + 24 });
    size.textContent = `${(last - first).toLocaleString("en")} points over ${kilometres(up)} by ${kilometres(across)} kilometres`;
    drawing.setAttribute("aria-label", `Way of ${data.people[chooser.value]}: ${size.textContent}, north to south by west to east.`);
    drawing.replaceChildren(...kinds.flatMap(([, , colour], k) => [
      svg("path", { class: `line l${colour} thin`, d: `M${ways[k].map((p) => flat(p).map((v) => v.toFixed(1)).join(" ")).join("L")}` }),
      ...ways[k].flatMap((p, i) => { const [x, y] = flat(p); return data.landmark[first + i] ? [svg("circle", { class: `mark f${colour}`, cx: x, cy: y, r: 4 })] : []; }),
    ]));
  };
  const save = () => {
    const [first, last] = range();
    const columns = ["time", ...kinds.flatMap(([name]) => [`${name} longitude`, `${name} latitude`])];
    const rows = Array.from({ length: last - first }, (_, i) => [new Date(data.time[first + i]).toISOString(), ...kinds.flatMap(([, p]) => [p[2 * (first + i)], p[2 * (first + i) + 1]])]);
    download(`trace-${data.people[chooser.value]}`, columns, rows);
  };
  draw();
  const legend = html("p", { class: "legend" }, ...kinds.map(([name, , colour]) => html("span", { class: "key" },
    svg("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" }, svg("path", { d: "M0 5H22", class: `line l${colour}` })), name)));
  return [html("h2", {}, "Traces"), html("figure", { "data-chart": "traces" },
    html("figcaption", {}, html("h3", {}, data.truth ? "Released and true way" : "Released way"), size, html("div", { class: "tools" }, chooser, ...view.buttons(), csvButton("the trace", save))),
    html("p", { class: "note" }, `Dots are landmarks. The ${data.people.length.toLocaleString("en")} longest of ${data.n_people.toLocaleString("en")} traces are here, long ones thinned.`), legend, zoomable(drawing, view, "Map of the trace"))];
}
