"use strict";
(() => {
  const { charts, palette } = JSON.parse(document.getElementById("data").textContent);
  const known = new Map(charts.map((chart) => [chart.key, chart]));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const coarse = matchMedia("(pointer: coarse)").matches;
  const narrow = () => innerWidth < 640;
  const flat = [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d"]];
  const solid = [["toImage", "orbitRotation", "zoom3d", "resetCameraDefault3d"]];
  const config = { responsive: true, displaylogo: false, displayModeBar: !coarse };
  const graphics = (() => {
    try { return Boolean(document.createElement("canvas").getContext("webgl")); } catch { return false; }
  })();
  let printing = false;

  const theme = () => dark.matches && !printing
    ? { colours: palette.dark, ink: "#e8eaed", soft: "#a7afb8", line: "#343a42", ground: "#14171b" }
    : { colours: palette.light, ink: "#1a1d21", soft: "#59616b", line: "#d9dde2", ground: "#ffffff" };

  function paint(trace, { colours, ink }) {
    const painted = { ...trace };
    if (trace.type === "scattergl" && !graphics) painted.type = "scatter";
    if (trace.colorbar) painted.colorbar = { ...trace.colorbar, tickfont: { color: ink } };
    if (trace.meta?.colour === undefined) return painted;
    const colour = colours[trace.meta.colour % colours.length];
    if (trace.meta.band) painted.fillcolor = colour + "2e";
    painted.line = { ...trace.line, color: colour };
    painted.marker = { ...trace.marker, color: colour };
    return painted;
  }

  function layoutOf(chart, look) {
    const axis = (given) => ({
      ...given, gridcolor: look.line, zerolinecolor: look.line, linecolor: look.line, tickfont: { color: look.soft },
      title: { ...given.title, standoff: 8, font: { color: look.soft, size: 13 } },
    });
    const layout = {
      ...chart.layout, xaxis: axis(chart.layout.xaxis), yaxis: axis(chart.layout.yaxis),
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", hovermode: "closest",
      font: { family: "system-ui, sans-serif", size: narrow() ? 11 : 13, color: look.ink },
      margin: { l: 10, r: 12, t: 12, b: 10 }, dragmode: coarse ? false : "zoom",
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: look.ink } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: look.soft, activecolor: look.ink },
      hoverlabel: { bgcolor: look.ground, font: { color: look.ink } },
      shapes: chart.layout.shapes.map((shape) => ({ ...shape, line: { ...shape.line, color: look.soft } })),
      annotations: chart.layout.annotations.map((words) => ({ ...words, bgcolor: look.ground + "b0", font: { ...words.font, color: look.soft } })),
    };
    if (printing) Object.assign(layout, { width: 680, height: 270 });
    if (chart.solid) {
      const side = { gridcolor: look.line, color: look.soft };
      const named = (given) => ({ ...side, title: { text: given.title.text } });
      layout.scene = { xaxis: named(chart.layout.xaxis), yaxis: named(chart.layout.yaxis), zaxis: side };
      layout.shapes = layout.annotations = [];
    }
    return layout;
  }

  function draw(place) {
    const chart = known.get(place.dataset.chart), look = theme();
    const data = (chart.solid ? chart.surface : chart.data).map((trace) => paint(trace, look));
    return Plotly.react(place, data, layoutOf(chart, look), { ...config, modeBarButtons: chart.solid ? solid : flat })
      .then(() => { place.dataset.drawn = "yes"; })
      .catch(() => { place.dataset.failed = "yes"; });
  }

  const places = [...document.querySelectorAll(".plot")];
  const drawAll = () => places.filter((place) => place.dataset.drawn).forEach(draw);

  // Those in sight come first, the others one at a time so that the page never stands still.
  async function begin() {
    const near = (place) => Math.max(0, place.getBoundingClientRect().top - innerHeight);
    for (const place of [...places].sort((a, b) => near(a) - near(b))) {
      if (near(place) > 0) document.documentElement.dataset.opened ??= String(performance.now());
      await draw(place);
      await new Promise((next) => setTimeout(next));
    }
    document.documentElement.dataset.ready = "yes";
  }

  function setLog(button) {
    const figure = button.closest(".chart"), place = figure.querySelector(".plot"), name = button.dataset.log;
    const chart = known.get(place.dataset.chart), axis = chart.layout[name + "axis"];
    const log = axis.type !== "log";
    button.setAttribute("aria-pressed", String(log));
    axis.type = log ? "log" : "linear";
    for (const key of ["range", "autorange", "tickmode", "tickvals", "ticktext"]) delete axis[key];
    Object.assign(axis, log && chart.logs[name] ? chart.logs[name] : { autorange: true });
    chart.layout.annotations.forEach((words, i) => {
      const shape = chart.layout.shapes[i];
      if ((shape.xref === "paper" ? "y" : "x") !== name) return;
      const at = shape[name + "0"];
      words[name] = log ? Math.log10(at) : at;
      words.visible = !log || at > 0;
    });
    draw(place);
  }

  function reset(place) {
    const chart = known.get(place.dataset.chart), change = {};
    for (const name of ["xaxis", "yaxis"]) {
      const { range, autorange } = chart.layout[name];
      if (range) change[name + ".range"] = [...range]; else change[name + ".autorange"] = autorange ?? true;
    }
    Plotly.relayout(place, change);
  }

  function walk(event) {
    const place = event.currentTarget, layout = place._fullLayout;
    if (!layout?.xaxis || event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = { ArrowLeft: ["xaxis", -.1], ArrowRight: ["xaxis", .1], ArrowUp: ["yaxis", .1], ArrowDown: ["yaxis", -.1] };
    const change = {};
    const shift = (name, low, high) => {
      const [a, b] = layout[name].range.map(Number), width = b - a;
      change[name + ".range"] = [a + low * width, b + high * width];
    };
    if (moves[event.key]) { const [name, by] = moves[event.key]; shift(name, by, by); }
    else if (event.key === "+" || event.key === "=") { shift("xaxis", .1, -.1); shift("yaxis", .1, -.1); }
    else if (event.key === "-") { shift("xaxis", -.125, .125); shift("yaxis", -.125, .125); }
    else if (event.key === "0") { reset(place); event.preventDefault(); return; }
    else return;
    event.preventDefault();
    Plotly.relayout(place, change);
  }

  function numbers(place) {
    const rows = ["name\tx\ty\tz"];
    for (const trace of place._fullData ?? []) {
      if (trace.hoverinfo === "skip") continue;
      const at = (values, i) => values?.[i] ?? i;
      if (trace.z) trace.z.forEach((row, r) => row.forEach?.((z, c) => rows.push([trace.name, at(trace.x, c), at(trace.y, r), z].join("\t"))));
      else for (let i = 0; i < trace.y.length; i++) rows.push([trace.name, at(trace.x, i), trace.y[i], ""].join("\t"));
    }
    return rows.join("\n");
  }

  const tableText = (table) => [...table.rows]
    .map((row) => [...row.cells].map((cell) => cell.textContent.trim()).join("\t")).join("\n");

  async function copy(text, button) {
    let done = true;
    try { await navigator.clipboard.writeText(text); } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
      button.focus();
    }
    document.getElementById("status").textContent = done ? "copied" : "could not copy";
    const before = button.dataset.words ??= button.textContent;
    button.textContent = done ? "copied" : "could not copy";
    setTimeout(() => { button.textContent = before; }, 1500);
  }

  function sortBy(header) {
    const table = header.closest("table"), body = table.tBodies[0], column = header.cellIndex;
    const up = header.getAttribute("aria-sort") !== "ascending";
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const compare = (a, b) => {
      const [x, y] = [value(a), value(b)], [p, q] = [Number(x), Number(y)];
      if (x === "" || y === "") return (x === "") - (y === "");  // what is not known comes last
      return (Number.isNaN(p) || Number.isNaN(q) ? x.localeCompare(y) : p - q) * (up ? 1 : -1);
    };
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", up ? "ascending" : "descending");
    body.append(...[...body.rows].sort(compare));
  }

  for (const place of places) place.addEventListener("keydown", walk);
  for (const button of document.querySelectorAll("[data-log]")) button.addEventListener("click", () => setLog(button));
  for (const button of document.querySelectorAll("[data-reset]")) button.addEventListener("click", () => reset(button.closest(".chart").querySelector(".plot")));
  for (const button of document.querySelectorAll("[data-numbers]")) button.addEventListener("click", () => copy(numbers(button.closest(".chart").querySelector(".plot")), button));
  for (const button of document.querySelectorAll(".copy")) button.addEventListener("click", () =>
    copy([...button.parentElement.querySelectorAll("table")].map(tableText).join("\n\n"), button));
  for (const button of document.querySelectorAll("th button")) button.addEventListener("click", () => sortBy(button.closest("th")));
  for (const button of document.querySelectorAll("[data-surface]")) {
    const place = button.closest(".chart").querySelector(".plot"), chart = known.get(place.dataset.chart);
    button.hidden = !(chart.surface && graphics);
    button.addEventListener("click", () => {
      chart.solid = !chart.solid;
      button.setAttribute("aria-pressed", String(chart.solid));
      Plotly.purge(place);
      draw(place);
    });
  }

  dark.addEventListener("change", drawAll);
  for (const [event, paper] of [["beforeprint", true], ["afterprint", false]]) {
    addEventListener(event, () => { printing = paper; drawAll(); });
  }
  if (places.length) begin(); else document.documentElement.dataset.ready = "yes";
})();
