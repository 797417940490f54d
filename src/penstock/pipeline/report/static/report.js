// The report's charts, tables and buttons. Everything that it shows is in the page.
(function () {
  "use strict";

  const root = document.documentElement;
  const color = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const LINES = ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"];
  const TONES = { main: "--c3", soft: "--c4", good: "--good", bad: "--bad" };
  const HEIGHT = 190;

  // -- numbers ------------------------------------------------------------------------

  function count(value) {
    for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e4]]) {
      if (Math.abs(value) >= size) return `${+(value / (unit === "k" ? 1e3 : size)).toPrecision(3)} ${unit}`;
    }
    return Number.isInteger(value) ? value.toLocaleString("en") : `${+value.toPrecision(3)}`;
  }

  function ms(value) {
    if (value < 1000) return `${Math.round(value)} ms`;
    if (value < 120e3) return `${+(value / 1e3).toPrecision(3)} s`;
    if (value < 7200e3) return `${+(value / 60e3).toPrecision(3)} min`;
    return `${+(value / 3600e3).toPrecision(3)} h`;
  }

  const UNITS = { count, ms, rate: (value) => `${count(value)}/s` };

  function clock(second, step) {
    const text = new Date(second * 1000).toISOString();
    const day = `${text.slice(8, 10)} ${"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split(" ")[+text.slice(5, 7) - 1]}`;
    if (step >= 86400) return day;
    return step < 60 ? `${day}, ${text.slice(11, 19)}` : `${day}, ${text.slice(11, 16)}`;
  }

  // -- charts -------------------------------------------------------------------------

  const plots = new Map();
  const hidden = new Set();

  const given = new Map();

  /** A queue or a topic has the same colour in every chart. */
  function colorOf(series) {
    if (TONES[series.tone]) return TONES[series.tone];
    if (!given.has(series.name)) given.set(series.name, LINES[given.size % LINES.length]);
    return given.get(series.name);
  }

  function options(chart, box) {
    const shown = UNITS[chart.unit];
    const step = chart.times[1] - chart.times[0] || 1;
    const axis = { stroke: color("--faint"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const bars = chart.bars ? { paths: uPlot.paths.bars({ size: [0.75, 26], radius: 0.15 }) } : {};
    const [first, last] = ends(chart);
    return {
      width: Math.max(240, box.clientWidth), height: HEIGHT, legend: { show: false }, padding: [12, 10, 0, 0],
      tzDate: (second) => uPlot.tzDate(new Date(second * 1000), "Etc/UTC"),
      cursor: { y: false, drag: { x: true, y: false, setScale: true }, sync: { key: chart.group }, points: { size: 6 } },
      scales: {
        // The whole time has half a step more on both sides, for the first and the last bar.
        x: { range: (_, low, high) => (low === first && high === last ? [first - step / 2, last + step / 2] : [low, high]) },
        y: { range: (_, low, high) => [0, high > 0 ? high * 1.12 : 1] },
      },
      axes: [{ ...axis, size: 26, space: 76, values: (_, times) => ticks(times) }, { ...axis, size: 58, space: 36, values: (_, values) => values.map(shown) }],
      series: [{}, ...chart.series.map((one, i) => {
        const line = color(colorOf(one));
        return {
          label: one.name, stroke: line, width: chart.bars ? 0 : 1.7, spanGaps: true, points: { show: false, size: 5 },
          fill: chart.bars ? `${line}cc` : chart.series.length < 3 || i === 0 ? `${line}1a` : undefined,
          show: !hidden.has(`${chart.id}/${one.name}`), ...bars,
        };
      })],
      hooks: {
        setCursor: [(plot) => tip(plot, chart, box, shown, step)],
        setScale: [(plot, key) => key === "x" && zoomed(plot, chart)],
      },
    };
  }

  const ends = (chart) => [chart.times[0], chart.times[chart.times.length - 1]];

  function ticks(times) {
    const step = times.length > 1 ? times[1] - times[0] : 86400;
    let day = "";
    return times.map((second) => {
      const text = clock(second, step);
      const [date, time] = text.split(", ");
      if (!time) return date;
      const label = date === day || second % 86400 ? time : date;
      day = date;
      return label;
    });
  }

  function tip(plot, chart, box, shown, step) {
    const old = box.querySelector(".tip");
    const place = plot.cursor.idx;
    // Only the chart under the pointer has a tip; the others show where the cursor is.
    if (place == null || plot.cursor.left < 0 || !box.matches(":hover")) return old?.remove();
    const node = old ?? box.appendChild(Object.assign(document.createElement("div"), { className: "tip" }));
    node.replaceChildren(Object.assign(document.createElement("b"), { textContent: clock(chart.times[place], step) }));
    chart.series.forEach((one, i) => {
      const value = one.values[place];
      if (value == null || hidden.has(`${chart.id}/${one.name}`)) return;
      const row = node.appendChild(document.createElement("div"));
      const name = row.appendChild(document.createElement("span"));
      name.appendChild(document.createElement("i")).style.background = color(colorOf(one));
      name.append(one.name);
      row.appendChild(document.createElement("span")).textContent = shown(value);
    });
    const left = plot.bbox.left / devicePixelRatio + plot.cursor.left;
    node.style.left = `${left + 14 + node.offsetWidth > box.clientWidth ? left - 14 - node.offsetWidth : left + 14}px`;
    node.style.top = "14px";
  }

  /** Zoom the other charts of the group to the same time; they call this in turn, and agree. */
  function zoomed(plot, chart) {
    const { min, max } = plot.scales.x;
    const [first, last] = ends(chart);
    const isWhole = min <= first && max >= last;
    for (const [other, { plot: target, box }] of plots) {
      if (other.group !== chart.group) continue;
      const scale = target.scales.x;
      if (target !== plot && (scale.min !== min || scale.max !== max)) target.setScale("x", { min, max });
      const figure = box.parentElement;
      const shown = figure.querySelector(".unzoom");
      if (isWhole) shown?.remove();
      else if (!shown) {
        const button = figure.appendChild(Object.assign(document.createElement("button"), { className: "unzoom", type: "button", textContent: "Zoom out" }));
        button.onclick = () => plots.get(other).plot.setScale("x", { min: first, max: last });
      }
    }
  }

  function legend(chart, box) {
    const list = document.createElement("div");
    list.className = "legend";
    chart.series.forEach((one, i) => {
      const key = `${chart.id}/${one.name}`;
      const button = list.appendChild(Object.assign(document.createElement("button"), { type: "button", title: one.name }));
      button.appendChild(document.createElement("i")).style.background = `var(${colorOf(one)})`;
      button.append(one.name);
      button.setAttribute("aria-pressed", "true");
      button.onclick = () => {
        const show = hidden.delete(key);
        if (!show) hidden.add(key);
        button.setAttribute("aria-pressed", String(show));
        plots.get(chart).plot.setSeries(i + 1, { show });
      };
    });
    box.after(list);
  }

  function draw(chart, box) {
    const old = plots.get(chart);
    const range = old && { min: old.plot.scales.x.min, max: old.plot.scales.x.max };
    old?.plot.destroy();
    const data = [chart.times, ...chart.series.map((one) => one.values)];
    const plot = new uPlot(options(chart, box), data, box);
    plots.set(chart, { plot, box });
    if (range) plot.setScale("x", range);
  }

  const source = document.getElementById("charts");
  const charts = source ? JSON.parse(source.textContent) : [];
  for (const chart of charts) {
    const box = document.querySelector(`[data-chart="${chart.id}"] .plot`);
    draw(chart, box);
    if (chart.series.length > 1) legend(chart, box);
    box.addEventListener("mouseleave", () => box.querySelector(".tip")?.remove());
    new ResizeObserver(() => {
      const { plot } = plots.get(chart);
      const width = Math.max(240, box.clientWidth);
      if (plot.width !== width) plot.setSize({ width, height: HEIGHT });
    }).observe(box);
  }

  // -- theme --------------------------------------------------------------------------

  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const redraw = () => plots.forEach(({ box }, chart) => draw(chart, box));
  const toggle = document.getElementById("theme");
  const name = () => (toggle.textContent = isDark() ? "Light theme" : "Dark theme");
  const wanted = new URLSearchParams(location.hash.slice(1)).get("theme");
  if (wanted === "dark" || wanted === "light") root.dataset.theme = wanted;
  toggle.hidden = false;
  name();
  toggle.onclick = () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    name();
    redraw();
  };
  system.addEventListener("change", () => {
    name();
    redraw();
  });
  if (wanted) redraw();

  // -- commands and tables ------------------------------------------------------------

  for (const button of document.querySelectorAll(".copy")) {
    if (!navigator.clipboard) continue;
    button.hidden = false;
    button.onclick = async () => {
      await navigator.clipboard.writeText(button.previousElementSibling.textContent);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 1500);
    };
  }

  for (const table of document.querySelectorAll("table")) {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    heads.forEach((head, column) => {
      if (!body.rows[0].cells[column].dataset.value) return;
      head.dataset.sorts = "";
      head.tabIndex = 0;
      const sort = () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const value = (row) => row.cells[column].dataset.value ?? "";
        const order = (a, b) => (head.classList.contains("n") ? value(a) - value(b) : value(b).localeCompare(value(a)));
        body.append(...[...body.rows].sort((a, b) => (down ? order(b, a) : order(a, b))));
      };
      head.onclick = sort;
      head.onkeydown = (event) => event.key === "Enter" && sort();
    });
  }

  for (const field of document.querySelectorAll("[data-finds]")) {
    field.hidden = false;
    field.oninput = () => {
      const text = field.value.toLowerCase();
      for (const row of document.getElementById(field.dataset.finds).tBodies[0].rows) {
        row.hidden = !row.cells[0].textContent.toLowerCase().includes(text);
      }
    };
  }
})();
