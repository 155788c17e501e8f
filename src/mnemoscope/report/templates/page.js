"use strict";
(() => {
  const { charts, palette } = JSON.parse(document.getElementById("data").textContent);
  const chartByKey = new Map(charts.map((chart) => [chart.key, chart]));
  const plots = [...document.querySelectorAll(".plot")];
  const chartOf = (plot) => chartByKey.get(plot.dataset.chart);
  const plotsOf = (button) => [...button.closest(".chart").querySelectorAll(".plot")];  // several, of panels
  const plotOf = (button) => plotsOf(button)[0];

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const narrow = () => innerWidth < 640;
  const hasWebGL = (() => {
    try { return Boolean(document.createElement("canvas").getContext("webgl")); } catch { return false; }
  })();
  let printing = false;

  // Drawing

  const buttons2d = [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d"]];
  const buttons3d = [["toImage", "orbitRotation", "zoom3d", "resetCameraDefault3d"]];
  const config = { responsive: true, displaylogo: false, displayModeBar: !touch };

  const currentTheme = () => dark.matches && !printing
    ? { colors: palette.dark, ink: "#e8eaed", soft: "#a7afb8", line: "#343a42", ground: "#14171b" }
    : { colors: palette.light, ink: "#1a1d21", soft: "#59616b", line: "#d9dde2", ground: "#ffffff" };

  // A trace with the theme's colors: `meta.color` is an index into the palette.
  function colored(trace, { colors, ink }) {
    const result = { ...trace };
    if (trace.type === "scattergl" && !hasWebGL) result.type = "scatter";
    if (trace.colorbar) result.colorbar = { ...trace.colorbar, tickfont: { color: ink } };
    if (trace.meta?.color === undefined) return result;
    const color = colors[trace.meta.color % colors.length];
    if (trace.meta.band) result.fillcolor = color + "2e";
    result.line = { ...trace.line, color };
    result.marker = { ...trace.marker, color };
    return result;
  }

  function layoutOf(chart, theme) {
    const axis = (given) => ({
      ...given, gridcolor: theme.line, zerolinecolor: theme.line, linecolor: theme.line, tickfont: { color: theme.soft },
      title: { ...given.title, standoff: 8, font: { color: theme.soft, size: narrow() ? 11 : 13 } },
    });
    const markerLine = (shape) => ({ ...shape, line: { ...shape.line, color: theme.soft } });
    const markerLabel = (label) => ({ ...label, font: { ...label.font, color: theme.soft } });
    const above = chart.layout.annotations.filter((label) => label.yref === "paper").length;  // rows of labels
    const layout = {
      ...chart.layout,
      xaxis: axis(chart.layout.xaxis),
      yaxis: axis(chart.layout.yaxis),
      shapes: chart.layout.shapes.map(markerLine),
      annotations: chart.layout.annotations.map(markerLabel),
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: narrow() ? 11 : 13, color: theme.ink },
      margin: { l: 10, r: 12, t: 12 + 16 * above, b: 10 },
      legend: {
        orientation: "h", x: 0, y: 1.02 + 0.08 * above, yanchor: "bottom", maxheight: 0.8, font: { color: theme.ink },
        tracegroupgap: 0,  // lines with bands stand no further apart than others
      },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: theme.soft, activecolor: theme.ink },
      hovermode: "closest",
      hoverlabel: { bgcolor: theme.ground, font: { color: theme.ink } },
      dragmode: touch ? false : "zoom",
    };
    if (printing) Object.assign(layout, { width: 680, height: 270 });
    if (chart.show3d) {
      const side = { gridcolor: theme.line, color: theme.soft };
      const titled = (given) => ({ ...side, title: { text: given.title.text } });
      layout.scene = { xaxis: titled(chart.layout.xaxis), yaxis: titled(chart.layout.yaxis), zaxis: side };
      layout.shapes = layout.annotations = [];
    }
    return layout;
  }

  function draw(plot) {
    const chart = chartOf(plot);
    const theme = currentTheme();
    const traces = (chart.show3d ? chart.surface : chart.data).map((trace) => colored(trace, theme));
    const modeBarButtons = chart.show3d ? buttons3d : buttons2d;
    // The chart grows with its legend where that would take the room of its axes: on a phone, where each name has a row
    // of its own, and in panels.
    const names = chart.layout.showlegend ? traces.filter((trace) => trace.showlegend !== false) : [];
    const inPanel = plot.closest(".panel");
    const widest = 60 + 7 * Math.max(0, ...names.map((trace) => (trace.name ?? "").length));
    const across = narrow() ? 1 : Math.max(1, Math.floor(plot.clientWidth / widest));
    const rows = (narrow() || inPanel) && !printing && names.length > 2 ? Math.ceil(names.length / across) : 0;
    plot.style.height = rows ? `calc(${narrow() ? 23 : 14}rem + ${22 * rows}px)` : "";
    return Plotly.react(plot, traces, layoutOf(chart, theme), { ...config, modeBarButtons })
      .then(() => { plot.dataset.drawn = "yes"; })
      .catch(() => { plot.dataset.failed = "yes"; });
  }

  const redrawAll = () => plots.filter((plot) => plot.dataset.drawn).forEach(draw);

  // Charts in view come first, the others one at a time, so that the page never freezes.
  async function drawAll() {
    const distance = (plot) => Math.max(0, plot.getBoundingClientRect().top - innerHeight);
    for (const plot of [...plots].sort((a, b) => distance(a) - distance(b))) {
      if (distance(plot) > 0) document.documentElement.dataset.opened ??= String(performance.now());
      await draw(plot);
      await new Promise((next) => setTimeout(next));
    }
    document.documentElement.dataset.ready = "yes";
  }

  // Tools of a chart

  function toggleLog(button) {
    const name = button.dataset.log;
    const log = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(log));
    for (const plot of plotsOf(button)) setLog(plot, name, log);
  }

  function setLog(plot, name, log) {
    const chart = chartOf(plot);
    const axis = chart.layout[name + "axis"];
    axis.type = log ? "log" : "linear";
    for (const key of ["range", "autorange", "tickmode", "tickvals", "ticktext"]) delete axis[key];
    Object.assign(axis, log && chart.logs[name] ? chart.logs[name] : chart.linear[name]);
    // plotly places annotations on a log axis by their power of ten.
    chart.layout.annotations.forEach((label, i) => {
      const line = chart.layout.shapes[i];
      if ((line.xref === "paper" ? "y" : "x") !== name) return;
      const at = line[name + "0"];
      label[name] = log ? Math.log10(at) : at;
      label.visible = !log || at > 0;
    });
    draw(plot);
  }

  function toggle3d(button) {
    const plot = plotOf(button);
    const chart = chartOf(plot);
    chart.show3d = !chart.show3d;
    button.setAttribute("aria-pressed", String(chart.show3d));
    Plotly.purge(plot);
    draw(plot);
  }

  function resetZoom(plot) {
    const change = {};
    for (const name of ["xaxis", "yaxis"]) {
      const { range, autorange } = chartOf(plot).layout[name];
      if (range) change[name + ".range"] = [...range];
      else change[name + ".autorange"] = autorange ?? true;
    }
    Plotly.relayout(plot, change);
  }

  // Arrow keys pan, + and - zoom, 0 resets.
  function onKey(event) {
    const plot = event.currentTarget;
    const layout = plot._fullLayout;
    if (!layout?.xaxis || event.ctrlKey || event.metaKey || event.altKey) return;
    const change = {};
    const move = (name, low, high) => {
      const [start, end] = layout[name].range.map(Number);
      const width = end - start;
      change[name + ".range"] = [start + low * width, end + high * width];
    };
    switch (event.key) {
      case "ArrowLeft": move("xaxis", -.1, -.1); break;
      case "ArrowRight": move("xaxis", .1, .1); break;
      case "ArrowUp": move("yaxis", .1, .1); break;
      case "ArrowDown": move("yaxis", -.1, -.1); break;
      case "+": case "=": move("xaxis", .1, -.1); move("yaxis", .1, -.1); break;
      case "-": move("xaxis", -.125, .125); move("yaxis", -.125, .125); break;
      case "0": break;
      default: return;
    }
    event.preventDefault();
    if (event.key === "0") resetZoom(plot);
    else Plotly.relayout(plot, change);
  }

  // Copying

  // The drawn data as tab-separated text.
  function chartText(plot) {
    const rows = ["name\tx\ty\tz"];
    const at = (values, i) => values?.[i] ?? i;
    for (const trace of plot._fullData ?? []) {
      if (trace.hoverinfo === "skip") continue;  // an edge of a band
      if (trace.z) {
        trace.z.forEach((row, r) => row.forEach?.((z, c) => {
          rows.push([trace.name, at(trace.x, c), at(trace.y, r), z].join("\t"));
        }));
      } else {
        for (let i = 0; i < trace.y.length; i++) rows.push([trace.name, at(trace.x, i), trace.y[i], ""].join("\t"));
      }
    }
    return rows.join("\n");
  }

  const tableText = (table) => [...table.rows]
    .map((row) => [...row.cells].map((cell) => cell.textContent.trim()).join("\t")).join("\n");

  async function copy(text, button) {
    let done = true;
    try { await navigator.clipboard.writeText(text); } catch {
      // A page opened from a file may have no clipboard: select the text and let the browser copy it.
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
      button.focus();
    }
    const message = done ? "copied" : "could not copy";
    document.getElementById("status").textContent = message;
    const label = button.dataset.label ??= button.textContent;
    button.textContent = message;
    setTimeout(() => { button.textContent = label; }, 1500);
  }

  // Sorting

  function sortBy(header) {
    const body = header.closest("table").tBodies[0];
    const ascending = header.getAttribute("aria-sort") !== "ascending";
    const cellOf = (row) => row.cells[header.cellIndex];
    const keyOf = (row) => cellOf(row).dataset.sort ?? cellOf(row).textContent.trim();
    const compare = (a, b) => {
      const [x, y] = [keyOf(a), keyOf(b)];
      if (x === "" || y === "") return (x === "") - (y === "");  // unknown values come last
      const numeric = !Number.isNaN(Number(x)) && !Number.isNaN(Number(y));
      return (numeric ? Number(x) - Number(y) : x.localeCompare(y)) * (ascending ? 1 : -1);
    };
    for (const other of header.parentElement.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    body.append(...[...body.rows].sort(compare));
  }

  // Filtering

  function filterRows() {
    const wanted = Object.fromEntries(filters.map((field) => [field.dataset.filter, field.value.trim().toLowerCase()]));
    const rows = [...document.querySelector("table.sortable").tBodies[0].rows];
    for (const row of rows) {
      row.hidden = (wanted.paper && row.dataset.paper.toLowerCase() !== wanted.paper)
        || (wanted.verdict && !row.dataset.verdict.split(" ").includes(wanted.verdict))
        || ![...row.cells].map((cell) => cell.textContent).join(" ").toLowerCase().includes(wanted.words);
    }
    const shown = rows.filter((row) => !row.hidden).length;
    document.querySelector("[data-filtered]").textContent = shown < rows.length ? `${shown} of ${rows.length}` : "";
  }

  const filters = [...document.querySelectorAll("[data-filter]")];
  for (const field of filters) field.addEventListener("input", filterRows);

  // Events

  const onClick = (selector, action) => {
    for (const button of document.querySelectorAll(selector)) button.addEventListener("click", () => action(button));
  };
  for (const plot of plots) plot.addEventListener("keydown", onKey);
  onClick("[data-log]", toggleLog);
  onClick("[data-reset]", (button) => plotsOf(button).forEach(resetZoom));
  onClick("[data-numbers]", (button) => copy(plotsOf(button).map(chartText).join("\n\n"), button));
  onClick("[data-surface]", toggle3d);
  for (const button of document.querySelectorAll("[data-surface]")) {
    button.hidden = !(chartOf(plotOf(button)).surface && hasWebGL);
  }
  onClick(".copy", (button) => {
    copy([...button.parentElement.querySelectorAll("table")].map(tableText).join("\n\n"), button);
  });
  onClick("th button", (button) => sortBy(button.closest("th")));

  dark.addEventListener("change", redrawAll);
  addEventListener("beforeprint", () => { printing = true; redrawAll(); });
  addEventListener("afterprint", () => { printing = false; redrawAll(); });
  if (plots.length) drawAll();
  else document.documentElement.dataset.ready = "yes";
})();
