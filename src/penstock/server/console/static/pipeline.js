// Runs of pipeline jobs: what they do now, what they did, and where their report is.

import { html, useEffect } from "./htm-preact.js";
import { get, path, query } from "./api.js";
import { now } from "./live.js";
import { link } from "./router.js";
import { Facts, Heading, Panel, Snippet, State, Table, Trouble, useEvery, useLoaded } from "./parts.js";
import { ago, count, duration, time, visible } from "./format.js";

const REFRESH_MS = 3_000;

export function Pipeline({ id }) {
  return id ? html`<${OneRun} id=${id} key=${id} />` : html`<${Runs} />`;
}

function Runs() {
  const found = useLoaded((signal) => get("/v1/pipeline/runs" + query({ limit: 200 }), { signal }), []);
  useEvery(REFRESH_MS, found.reload);
  const runs = found.value?.runs ?? [];
  return html`
    <${Heading} title="Pipeline" note="Bulk work on Spark: routing, archives, reports, replays." />
    <${Trouble} error=${found.error} />
    ${runs.length > 0 && html`<${Panel}><${Table} caption="Runs, newest first" rows=${runs} rowKey=${(run) => run.id} columns=${[
      ["Run", (run) => html`<a href=${link("pipeline", run.id)}>${run.id}</a>`],
      ["Job", (run) => run.job],
      ["State", (run) => html`<${State} state=${run.state} />`],
      ["Started", (run) => html`<span class="nowrap" title=${time(run.started_at)}>${ago(run.started_at, now())}</span>`],
      ["Took", (run) => duration((run.finished_at ?? run.updated_at) - run.started_at), "number"],
      ["Progress", (run) => brief(run.finished_at ? run.summary : run.progress), "wide"],
      ["Report", (run) => html`<${Report} report=${run.report} />`, "wide"],
    ]} /><//>`}
    ${found.value && !runs.length && html`<${Panel} class="teach" title="No job has run yet">
      <p>A job reports here while it works. This one copies the log to a lake of Parquet files:</p>
      <${Snippet} title="Command line" text="penstock pipeline archive --help" />
    <//>`}`;
}

function OneRun({ id }) {
  const found = useLoaded((signal) => get(path`/v1/pipeline/runs/${id}`, { signal }), [id]);
  const run = found.value;
  useEvery(REFRESH_MS, () => run?.state === "running" && found.reload());
  if (!run) return html`<${Heading} title=${id} /><${Trouble} error=${found.error} />`;
  return html`
    <${Heading} title=${id} note=${run.job}><${State} state=${run.state} /><//>
    ${run.error && html`<div class="trouble" role="alert"><strong>It failed</strong><pre>${visible(run.error)}</pre></div>`}
    <div class="two">
      <${Panel} title="Run"><${Facts} entries=${[
        ["Started", time(run.started_at)], ["Last heard from", time(run.updated_at)], ["Ended", time(run.finished_at)],
        ["Took", duration((run.finished_at ?? run.updated_at) - run.started_at)], ["Report", html`<${Report} report=${run.report} />`]]} /><//>
      <${Panel} title="Progress"><${Values} values=${run.progress} /><//>
      <${Panel} title="Summary"><${Values} values=${run.summary} /><//>
    </div>`;
}

const shown = (value) => (typeof value === "number" ? count(value) : visible(String(value)));
const brief = (values) => Object.entries(values).slice(0, 4).map(([name, value]) => `${name} ${shown(value)}`).join(", ");

function Values({ values }) {
  const entries = Object.entries(values);
  return entries.length ? html`<${Facts} entries=${entries.map(([name, value]) => [name, shown(value)])} />` : html`<p class="empty">None.</p>`;
}

function Report({ report }) {
  if (!report) return "–";
  return /^https?:/.test(report) ? html`<a href=${report} target="_blank" rel="noopener noreferrer">open</a>` : html`<span class="code">${visible(report)}</span>`;
}
