// Charts over time, drawn by uPlot in the colours of the theme.

import { html, useEffect, useRef, useState } from "./htm-preact.js";
import { get, query } from "./api.js";
import { now } from "./live.js";
import { useEvery } from "./parts.js";
import { count, rate } from "./format.js";

const HEIGHT = innerHeight > 1400 ? 260 : innerWidth > 1180 ? 205 : 150;
/** Points per chart; more cannot be told apart. */
const POINTS = 240;
/** Labels show hours and minutes: none may be closer. */
const TICKS_S = [60, 120, 300, 600, 1_200, 3_600, 7_200, 10_800, 21_600];
const REFRESH_MS = 5_000;
/** The periods, in seconds, and which history of the server has them. */
const SPANS = { minutes: ["10 minutes", 600, "hour"], hour: ["Hour", 3_600, "hour"], day: ["Day", 86_400, "day"] };

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

let loading = null;

/** uPlot is loaded after the rest of the page is drawn. */
function loadPlot() {
  loading ??= new Promise((resolve, reject) => {
    const style = document.createElement("link");
    style.rel = "stylesheet";
    style.href = new URL("./uplot.css", import.meta.url);
    const script = document.createElement("script");
    script.src = new URL("./uplot.js", import.meta.url);
    script.onload = resolve;
    script.onerror = () => {
      loading = null;
      reject(new Error("uPlot could not be loaded"));
    };
    document.head.append(style, script);
  });
  return loading;
}

/** `series`: { label, color (a custom property), fill, dash }; `data`: uPlot's columns. */
export function Chart({ title, series, data, unit, isLoading }) {
  const box = useRef();
  const plot = useRef(null);
  const latest = useRef(data);
  latest.current = data;
  const draw = () => {
    plot.current?.destroy();
    const width = Math.max(200, box.current.clientWidth);
    plot.current = new uPlot(options(width, series), latest.current, box.current);
  };
  useEffect(() => {
    const gone = new AbortController();
    loadPlot().then(() => gone.signal.aborted || follow(), () => {});
    const follow = () => {
      draw();
      const resized = new ResizeObserver(() => {
        const width = Math.max(200, box.current.clientWidth);
        if (plot.current.width !== width) plot.current.setSize({ width, height: HEIGHT });
      });
      resized.observe(box.current);
      const theme = new MutationObserver(draw);
      theme.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw, { signal: gone.signal });
      gone.signal.addEventListener("abort", () => {
        resized.disconnect();
        theme.disconnect();
        plot.current.destroy();
      });
    };
    return () => gone.abort();
  }, []);
  useEffect(() => plot.current?.setData(data), [data]);
  const last = data.slice(1).map((values) => values[values.length - 1] ?? 0);
  const shown = last.map((value) => (isLoading ? "–" : unit === "rate" ? `${rate(value)}/s` : count(value)));
  const said = series.map((one, i) => `${one.label} ${shown[i]}`).join(", ");
  return html`<figure class="chart">
    <figcaption>
      <span class="title">${title}</span>
      ${series.map((one, i) => html`<span class="key"><i style=${{ background: `var(${one.color})` }}></i>${one.label} <b>${shown[i]}</b></span>`)}
    </figcaption>
    <div ref=${box} class="plot" style=${{ minHeight: `${HEIGHT}px` }} role="img" aria-label=${`${title}: now ${said}`}></div>
  </figure>`;
}

function options(width, series) {
  const axis = { stroke: color("--faint"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  return {
    width, height: HEIGHT, legend: { show: false }, padding: [8, 16, 0, 0],
    cursor: { y: false, points: { size: 5 } },
    scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.1)] } },
    axes: [
      { ...axis, size: 24, space: 70, incrs: TICKS_S, values: (_, times) => times.map(clock) },
      { ...axis, size: 44, space: 34, values: (_, values) => values.map((value) => (value >= 1e4 ? `${value / 1e3} k` : value)) },
    ],
    series: [{}, ...series.map((one) => ({
      label: one.label, stroke: color(one.color), width: 1.5, dash: one.dash, points: { show: isLonely, size: 5, fill: color(one.color) },
      fill: one.fill ? `${color(one.color)}22` : undefined,
    }))],
  };
}

/** A first sample makes no line yet. */
const isLonely = (plot, series) => plot.data[series].filter((value) => value !== null).length === 1;

function clock(seconds) {
  const at = new Date(seconds * 1000);
  return `${String(at.getHours()).padStart(2, "0")}:${String(at.getMinutes()).padStart(2, "0")}`;
}

/** The samples in equal steps: levels are the last value of a step, rates its average. */
export function steps(history, span) {
  const width = SPANS[span][1] / POINTS;
  const end = Math.floor(history.at / 1000);
  const start = end - width * POINTS;
  const times = Array.from({ length: POINTS }, (_, i) => Math.round(start + (i + 1) * width));
  const index = Object.fromEntries(history.columns.map((name, i) => [name, i]));
  const level = (name) => fill(history.samples, index[name], start, width, false);
  const flow = (name) => fill(history.samples, index[name], start, width, true);
  return { times, level, flow };
}

function fill(samples, column, start, width, sums) {
  const out = new Array(POINTS).fill(sums ? 0 : null);
  const step = (at) => Math.min(POINTS - 1, Math.floor((at - start) / width));
  let before = start;
  let known = null;
  let next = 0;
  for (const sample of samples) {
    const at = step(sample[0]);
    if (at >= 0 && sums) {
      // What happened since the sample before is spread over the steps between them.
      const first = Math.max(0, Math.min(at, step(before) + 1));
      for (let i = first; i <= at; i += 1) out[i] += sample[column] / width / (at - first + 1);
    } else if (at >= 0) {
      for (; next < at; next += 1) out[next] ??= known;
      out[at] = sample[column];
    }
    known = sample[column];
    before = sample[0];
  }
  if (!sums) for (; next < POINTS; next += 1) out[next] ??= known;
  return out;
}

/** Throughput and depth of a queue, or of all queues. */
export function Past({ queue }) {
  const [span, setSpan] = useState("minutes");
  const [found, setFound] = useState(null);
  const load = () => get(`/v1/stats/history${query({ queue, span: SPANS[span][2] })}`).then((history) => setFound(steps(history, span)), () => {});
  useEffect(() => {
    load();
  }, [queue, span]);
  useEvery(REFRESH_MS, load);
  const nothing = found ?? steps({ at: now(), columns: [], samples: [] }, span);
  const { times, level, flow } = nothing;
  return html`<section class="past" aria-label="The past">
    <div class="choice" role="group" aria-label="Period">
      ${Object.entries(SPANS).map(([key, [text]]) => html`<button type="button" aria-pressed=${span === key ? "true" : "false"}
        onClick=${() => setSpan(key)}>${text}</button>`)}
    </div>
    <div class="charts">
      <${Chart} title="Throughput" unit="rate" isLoading=${!found} data=${[times, flow("entered"), flow("acked"), flow("failed")]} series=${[
        { label: "in", color: "--muted-ink" }, { label: "acked", color: "--accent", fill: true }, { label: "failed", color: "--bad" }]} />
      <${Chart} title="Waiting" isLoading=${!found} data=${[times, level("available"), level("in_flight"), level("delayed")]} series=${[
        { label: "available", color: "--accent", fill: true }, { label: "in flight", color: "--muted-ink" }, { label: "delayed", color: "--faint", dash: [4, 3] }]} />
    </div>
  </section>`;
}
