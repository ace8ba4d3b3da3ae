// The charts of report.html, from the JSON in the page: {"runs": [{"name", "columns": {"step": [...], ...}, "time": {...}, "config"}]}.
(() => {
  const runs = JSON.parse(document.getElementById("data").textContent).runs;
  // Folders may have the same name; dygraphs and the legend tell series apart by their labels.
  const named = new Map();
  for (const run of runs) {
    const count = (named.get(run.name) || 0) + 1;
    named.set(run.name, count);
    if (count > 1) run.name += ` (${count})`;
  }
  const style = getComputedStyle(document.documentElement);
  const colour = i => style.getPropertyValue("--c" + i % 8).trim();
  // Eight colours drawn through, then the same dashed, then with more and more dots between the dashes.
  const dashes = i => i < 8 ? null : [8, 4, ...Array(Math.floor(i / 8) - 1).fill([2, 4]).flat()];

  // Epochs done, with fractions: an epoch's rows share its number, but not their steps.
  for (const { columns } of runs) {
    if (!columns.epoch || !columns.step) continue;
    const last = new Map();  // the last step of each epoch
    columns.epoch.forEach((epoch, i) => { last.set(epoch, Math.max(last.get(epoch) || 0, columns.step[i])); });
    const begun = new Map();
    let before = null;
    for (const [epoch, step] of [...last].sort((a, b) => a[0] - b[0])) {
      const begin = before ? before.end : step * epoch / (epoch + 1);
      before = { begin, end: step, steps: Math.max(step - begin, before ? before.steps : 0, 1) };
      begun.set(epoch, before);
    }
    columns.epoch = columns.epoch.map((epoch, i) => epoch === null ? null : epoch + (columns.step[i] - begun.get(epoch).begin) / begun.get(epoch).steps);
  }

  // Of which chart a metric is.
  const of_steps = "Milliseconds of a step";
  const families = [
    ["Loss", /loss/],
    ["Accuracy", /(^|_)acc(uracy)?$/],
    ["Dice and IoU", /(dice|iou)$/],
    ["Learning rate", /^lr$/],
    ["Samples a second", /^samples_per_second$/],
    [of_steps, /_ms$/],
    ["CPU, percent of a core", /^cpu_percent/],
    ["Memory, MiB", /^rss_mb/],
    ["GPU, percent", /^gpu_percent/],
    ["GPU memory, MiB", /^gpu_.*mb/],
    ["Other", /./],
  ];
  const hidden = /^(step|epoch|peak_rss_mb.*)$/;

  const element = (name, properties = {}, ...children) => {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  };

  // "0.01234", "12,345", "1.2e-7"
  const shown = value => {
    if (value === null || value === undefined || Number.isNaN(value)) return "";
    const size = Math.abs(value);
    if (size !== 0 && (size < 1e-4 || size >= 1e9)) return value.toExponential(2);
    return value.toLocaleString("en-US", size >= 1000 ? { maximumFractionDigits: 0 } : { maximumSignificantDigits: 4 });
  };

  // Of each run its colour in a comparison; page.css knows it too.
  const mark_of = run => {
    const mark = element("i", { className: "mark" });
    mark.style.background = `var(--c${run % 8})`;
    return mark;
  };

  const in_seconds = value => (value < 100 ? value.toFixed(2) : shown(value)) + " s";

  // {family: [{label, look, points: [[x, y], ...]}]}: in a comparison the colour is the run's in every chart, and the dashes tell its
  // metrics apart.
  const series_by_family = axis => {
    const found = new Map(families.map(([name]) => [name, []]));
    for (const [index, run] of runs.entries())
      for (const [name, values] of Object.entries(run.columns)) {
        if (hidden.test(name)) continue;
        const x = run.columns[axis] || [];
        const points = [];
        values.forEach((y, i) => { if (y !== null && x[i] !== null && x[i] !== undefined) points.push([x[i], y]); });
        const [family] = families.find(([, pattern]) => pattern.test(name));
        if (points.length) found.get(family).push({ label: runs.length > 1 ? run.name + ": " + name : name, run: index, metric: name, points });
      }
    for (const series of found.values()) {
      const metrics = [...new Set(series.map(({ metric }) => metric))];
      series.forEach((one, i) => {
        const round = Math.floor(one.run / 8) * metrics.length + metrics.indexOf(one.metric);
        one.look = runs.length > 1 ? one.run % 8 + 8 * round : i;
      });
    }
    return found;
  };

  // The last point that is not after x.
  const at_or_before = (points, x) => {
    let low = 0, high = points.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (points[middle][0] <= x) low = middle + 1; else high = middle;
    }
    return points[low - 1];
  };

  // An exponential average that is not biased towards its beginning.
  const smooth = (points, weight) => {
    let sum = 0, share = 0;
    return points.map(([x, y]) => {
      sum = weight * sum + (1 - weight) * y;
      share = weight * share + (1 - weight);
      return [x, sum / share];
    });
  };

  // Rows of x and each line's y, for dygraphs.
  const table_of = lines => {
    const rows = new Map();
    lines.forEach((line, i) => line.forEach(([x, y]) => {
      if (!rows.has(x)) rows.set(x, [x, ...lines.map(() => null)]);
      rows.get(x)[i + 1] = y;
    }));
    return [...rows.values()].sort((a, b) => a[0] - b[0]);
  };

  // Shades what lies between the ranks of a metric: lines of {label, colour, points}.
  const draw_bands = (context, graph, lines) => {
    const bands = new Map();
    for (const { label, colour, points } of lines) {
      const name = label.replace(/_(rank\d+|min|max)$/, "");
      if (name === label) continue;
      if (!bands.has(name)) bands.set(name, { colour, ends: new Map() });
      const { ends } = bands.get(name);
      for (const [x, y] of points) {
        const [low, high] = ends.get(x) || [y, y];
        ends.set(x, [Math.min(low, y), Math.max(high, y)]);
      }
    }
    for (const { colour, ends } of bands.values()) {
      const ranges = [...ends].sort((a, b) => a[0] - b[0]), edge = i => ranges.map(([x, ys]) => graph.toDomCoords(x, ys[i]));
      context.fillStyle = colour + "28";
      context.beginPath();
      for (const [x, y] of [...edge(0), ...edge(1).reverse()]) context.lineTo(x, y);
      context.fill();
    }
  };

  // What its reader chose stays when the page is loaded again.
  const place_of_choices = "ddprun " + location.pathname;
  let chosen = null;
  try { chosen = JSON.parse(sessionStorage.getItem(place_of_choices)); } catch { /* no storage */ }
  const controls = { axis: "step", weight: 0, log: false, ...chosen?.controls };
  const place = element("div", { className: "charts" });
  const off = new Set(chosen?.off);  // labels of hidden series
  const zooms = new Map(chosen?.zooms);  // the part of the axis that a chart shows, by its title
  addEventListener("pagehide", () => {
    try { sessionStorage.setItem(place_of_choices, JSON.stringify({ controls, off: [...off], zooms: [...zooms] })); } catch { /* no storage */ }
  });

  const draw_chart = (title, series) => {
    const plot = element("div", { className: "plot" }), legend = element("div", { className: "legend" });
    const chart = element("section", { className: "chart" }, element("h3", { textContent: title }), plot, legend);
    if (title === of_steps && series.some(({ metric }) => metric === "overlap_ms")) chart.append(element("p", { className: "note", textContent:
      "overlap_ms is the part of communication_ms in which backward still computed: only the rest makes a step longer." }));
    place.append(chart);
    const lines = series.map(({ points }) => points.length > 2 ? smooth(points, controls.weight) : points);
    const raw = controls.weight > 0 ? series.map(({ points }) => points) : [];
    const colours = series.map(({ look }) => colour(look));
    const few = Math.max(...series.map(({ points }) => points.length)) <= 25;
    const positive = series.every(({ points }) => points.every(([, y]) => y > 0));
    if (controls.log && !positive)
      plot.before(element("p", { className: "note", textContent: "not on a log scale: some values are not above 0" }));
    const looks = {};
    series.forEach(({ label, look, points }) => {
      const alone = points.length === 1;
      looks[label] = { strokePattern: dashes(look), drawPoints: alone || few, pointSize: alone ? 6 : 3 };
    });
    const values = series.map(({ label, look }, i) => {
      const value = element("b");
      const button = element("button", { type: "button", title: "show or hide" }, element("i"), label + " ", value);
      const pattern = dashes(look) ? `stroke-dasharray="${dashes(look)}"` : "";
      button.firstChild.innerHTML = `<svg width="26" height="4"><path d="M0 2H26" stroke="${colours[i]}" stroke-width="4" ${pattern}/></svg>`;
      button.setAttribute("aria-pressed", !off.has(label));
      button.onclick = () => {
        if (!off.delete(label)) off.add(label);
        button.setAttribute("aria-pressed", !off.has(label));
        graph.setVisibility(visibility());
      };
      legend.append(button);
      return value;
    });
    const visibility = () => [...series, ...raw.map((_, i) => series[i])].map(({ label }) => !off.has(label));
    const show_last = () => lines.forEach((line, i) => { values[i].textContent = shown(line[line.length - 1][1]); });
    const graph = new Dygraph(plot, table_of([...lines, ...raw]), {
      labels: [controls.axis, ...series.map(({ label }) => label), ...raw.map((_, i) => series[i].label + " (raw)")],
      colors: [...colours, ...raw.map((_, i) => colours[i] + "40")],
      series: looks,
      visibility: visibility(),
      connectSeparatedPoints: true,
      logscale: controls.log && positive && visibility().includes(true),
      underlayCallback: (context, area, drawn) =>
        draw_bands(context, drawn, series.map(({ label }, i) => ({ label, colour: colours[i], points: lines[i] })).filter(({ label }) => !off.has(label))),
      strokeWidth: 1.75,
      gridLineColor: style.getPropertyValue("--grid").trim(),
      axisLineColor: style.getPropertyValue("--line").trim(),
      highlightCircleSize: 4,
      dateWindow: zooms.get(title),
      zoomCallback: (from, to) => { graph.isZoomed("x") ? zooms.set(title, [from, to]) : zooms.delete(title); },
      xRangePad: 6,
      yRangePad: 8,
      axes: { x: { axisLabelFormatter: shown, pixelsPerLabel: 70 }, y: { axisLabelFormatter: shown, axisLabelWidth: 56 } },
      // The value of each series at the pointer, or the last before it.
      highlightCallback: (event, x) => lines.forEach((line, i) => {
        const point = at_or_before(line, x);
        values[i].textContent = point ? shown(point[1]) : "";
      }),
      unhighlightCallback: show_last,
    });
    show_last();
  };

  const draw = () => {
    place.replaceChildren();
    for (const [title, series] of series_by_family(controls.axis)) {
      if (!series.length) continue;
      if (series.some(({ points }) => points.length > 1)) {
        draw_chart(title, series);
      } else {  // nothing to draw a line through
        const list = element("dl", { className: "highlights" });
        for (const { label, points } of series)
          list.append(element("div", {}, element("dt", { textContent: label }), element("dd", { textContent: shown(points[0][1]) })));
        place.append(element("section", { className: "chart" }, element("h3", { textContent: title }), list));
      }
    }
  };

  const control = (text, input, event, change) => {
    input.addEventListener(event, () => { change(input); draw(); });
    return element("label", {}, text, input);
  };
  const axes = ["step", "epoch"].filter(axis => runs.some(run => axis in run.columns));
  if (!axes.includes(controls.axis)) controls.axis = axes[0];
  const curves = element("div", { className: "controls" }, element("h2", { textContent: "Curves" }),
    control("over", element("select", { name: "axis" }, ...axes.map(axis => new Option(axis, axis, false, axis === controls.axis))), "change", input => { controls.axis = input.value; zooms.clear(); }),
    control("smoothing", element("input", { type: "range", name: "smoothing", min: 0, max: 0.99, step: 0.01, value: controls.weight }), "input",
            input => { controls.weight = Number(input.value); }),
    control("log scale", element("input", { type: "checkbox", name: "log", checked: controls.log }), "change", input => { controls.log = input.checked; }));
  const charts = document.getElementById("charts");
  if ([...series_by_family(axes[0]).values()].some(series => series.length)) charts.append(curves, place);

  // Where the time went: of each run a bar.
  const parts = [["start", "start"], ["data_wait", "waiting for data"], ["compute", "compute"], ["communication", "communication"],
                 ["evaluation", "evaluation"], ["checkpoint_stall", "checkpoints"], ["other", "other"]];
  for (const [index, run] of runs.entries()) {
    const total = run.time && run.time.process_seconds;
    if (!total) continue;
    const bar = element("div", { className: "shares" }), list = element("ul", { className: "parts" });
    parts.forEach(([key, name], i) => {
      const seconds = run.time[key + "_seconds"];
      if (!(seconds / total > 0.0005)) return;
      const piece = element("span", { title: name + ": " + in_seconds(seconds) }), mark = element("i");
      piece.style.flexGrow = seconds;
      piece.style.background = mark.style.background = `var(--c${i})`;
      bar.append(piece);
      list.append(element("li", {}, mark, name + " ", element("b", { textContent: in_seconds(seconds) }),
                          " (" + (100 * seconds / total).toFixed(1) + " %)"));
    });
    const several = runs.length > 1;
    charts.append(element("h2", {}, ...(several ? [mark_of(index)] : []), "Where the time went" + (several ? ": " + run.name : "")), bar, list);
    if (run.time.communication_seconds > 0) charts.append(element("p", { className: "note", textContent:
      "Communication is the waiting for other ranks' gradients; what was exchanged while backward still computed (the overlap) cost no time and is not in it." }));
  }

  // What differs between the configurations.
  const settings_of = text => {
    const settings = new Map();
    let section = "";
    for (const line of (text || "").split("\n")) {
      const header = line.match(/^\[(.*)\]$/), pair = line.match(/^([^#=]+?)\s*=\s*(.*)$/);
      if (header) section = header[1] + ".";
      else if (pair) settings.set(section + pair[1], pair[2]);
    }
    return settings;
  };
  if (runs.length > 1) {
    const all = runs.map(run => settings_of(run.config));
    const names = [...new Set(all.flatMap(settings => [...settings.keys()]))];
    const rows = names.filter(name => new Set(all.map(settings => settings.get(name))).size > 1);
    const row = (kind, first, cells) => element("tr", {}, element("th", { textContent: first }), ...cells.map(cell => element(kind, {}, ...cell)));
    charts.append(element("h2", { textContent: rows.length ? "What differs" : "The runs have the same configuration" }));
    if (rows.length)
      charts.append(element("table", { className: "runs" }, row("th", "", runs.map((run, i) => [mark_of(i), run.name])),
        ...rows.map(name => row("td", name, all.map(settings => [settings.get(name) || ""])))));
  }

  // While the run goes on, the page is written again and again.
  const notice = document.getElementById("notice");
  const reload = () => {
    if (location.protocol === "file:") return location.reload();
    fetch(location, { method: "HEAD" }).then(answer => answer.ok ? location.reload() : Promise.reject(answer))
      .catch(() => { notice.textContent += "; nobody serves this page any more: report.html in the run folder is the latest"; });
  };
  if (notice) setTimeout(reload, 5000);

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
