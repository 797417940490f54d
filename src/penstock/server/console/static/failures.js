// The dead letters of a queue by what went wrong, and how to put them back.

import { html, useEffect, useState } from "./htm-preact.js";
import { get, path, post, query } from "./api.js";
import { now } from "./live.js";
import { link } from "./router.js";
import { may } from "./session.js";
import { ask, Button, Headers, say, Table, Trouble, useAction, useLoaded } from "./parts.js";
import { FilterInput } from "./filter.js";
import { ago, count, plural, time, visible } from "./format.js";

/** Messages per call of a replay: progress is seen, and stopping it is quick. */
const CHUNK = 500;

export function Failures({ queue, row }) {
  const [where, setWhere] = useState("");
  const [asked, setAsked] = useState("");
  const found = useLoaded((signal) => get(path`/v1/queues/${queue}/failures` + query({ where: asked }), { signal }), [queue, asked]);
  const groups = found.value?.groups ?? [];
  const most = Math.max(1, ...groups.map((group) => group.count));
  const stale = row && found.value && !asked && !found.value.more && row.failed !== found.value.scanned;
  return html`<section aria-label="Dead letters">
    <form class="where bar" onSubmit=${(event) => { event.preventDefault(); setAsked(where.trim()); }}>
      <${FilterInput} id="where" label="Only dead letters where" value=${where} onChange=${setWhere}
        placeholder="Only where, for example country = 'AT'" onEnter=${() => setAsked(where.trim())} />
      <button type="submit" class="button">Search</button>
      <${Button} onClick=${found.reload}>Refresh<//>
    </form>
    <${Trouble} error=${found.error} />
    ${found.value && html`<p class="note" role="status">${summary(found.value)}${stale ? " The counts have changed since: refresh." : ""}</p>`}
    <div class="groups">
      ${groups.map((group) => html`<${Group} key=${group.fingerprint} queue=${queue} group=${group} most=${most} where=${asked} row=${row} onChange=${found.reload} />`)}
    </div>
    ${found.value && !groups.length && html`<p class="empty">No dead letters${asked ? " match" : ". Deliveries that run out of attempts or are rejected will be grouped here by their error"}.</p>`}
  </section>`;
}

function summary({ groups, scanned, more }) {
  const grouped = groups.reduce((sum, group) => sum + group.count, 0);
  const rest = scanned - grouped;
  return `${plural(scanned, "dead letter")} with ${rest ? `more than ${count(groups.length)} kinds` : plural(groups.length, "kind")} of error.${
    rest ? ` The most frequent ones are shown; ${plural(rest, "dead letter")} with rarer errors ${rest === 1 ? "is" : "are"} not: search, or replay these first.` : ""}${
    more ? " The queue has more, which were not read." : ""}`;
}

function Group({ queue, group, most, where, row, onChange }) {
  const [plan, setPlan] = useState(null);
  const [work, setWork] = useState(null);
  const [open, setOpen] = useState(false);
  const { run, busy, error } = useAction();
  const admin = may("admin", queue);

  const select = async () => {
    const reply = await get(path`/v1/queues/${queue}/failures` + query({ where, fingerprint: group.fingerprint }));
    return reply.groups[0]?.ids ?? [];
  };
  const dryRun = () => run(async () => {
    const ids = await select();
    setPlan({ ids, ...(await post(path`/v1/queues/${queue}/replays`, { ids, dry_run: true })) });
  });
  const replay = () => run(async () => {
    const stop = { now: false };
    const id = `console-${Date.now().toString(36)}`;
    const acked = row?.done ?? 0;
    const all = plan.ids.length;
    let done = 0;
    setPlan(null);
    try {
      for (let at = 0; at < all && !stop.now; at += CHUNK) {
        setWork({ done, all, stop, acked });
        const reply = await post(path`/v1/queues/${queue}/replays`, { ids: plan.ids.slice(at, at + CHUNK), replay_id: id });
        done += reply.count;
      }
    } finally {
      setWork({ done, all, stop: null, acked });
    }
    say(`${plural(done, "dead letter")} of ${queue} can be claimed again.`);
  });
  const purge = async () => {
    const yes = await ask({
      title: `Remove ${plural(group.count, "dead letter")}?`, yes: "Remove",
      details: html`<p>These failed with:</p><pre>${visible(group.error)}</pre><p>They are removed from ${queue} for good. The messages stay in the log and in other queues.</p>`,
    });
    if (!yes) return;
    await run(async () => {
      const reply = await post(path`/v1/queues/${queue}/purges`, { state: "failed", ids: await select() });
      say(`${plural(reply.count, "dead letter")} of ${queue} removed.`);
      onChange();
    });
  };

  return html`<article class="group panel" aria-label=${visible(group.error)}>
    <header>
      <div class="share"><b>${count(group.count)}</b><meter min="0" max=${most} value=${group.count} aria-label="Share of the largest group"></meter></div>
      <div class="what"><h2 class="code">${visible(group.error)}</h2>
        <p class="note" title=${`${time(group.first_at)} to ${time(group.last_at)}`}>first ${ago(group.first_at, now())}, last ${ago(group.last_at, now())}</p></div>
      ${admin && html`<div class="actions">
        <${Button} onClick=${dryRun} disabled=${busy}>Replay…<//>
        <${Button} kind="danger" onClick=${purge} disabled=${busy}>Purge…<//></div>`}
    </header>
    <${Trouble} error=${error} />
    ${plan && html`<div class="plan">
      <p><strong>${plural(plan.count, "dead letter")}</strong> would be available again${plan.skipped ? `; ${plural(plan.skipped, "expired one")} would be skipped` : ""}. Nothing has changed yet.</p>
      <${Sample} items=${plan.sample} brief=${true} />
      <div class="actions"><${Button} kind="primary" onClick=${replay} disabled=${busy || !plan.count}>${`Replay ${count(plan.count)}`}<//><${Button} onClick=${() => setPlan(null)}>Cancel<//></div>
    </div>`}
    ${work && html`<${Progress} work=${work} row=${row} onDone=${() => { setWork(null); onChange(); }} />`}
    ${!plan && !work && html`<details onToggle=${(event) => setOpen(event.target.open)}><summary>Sample</summary>${open && html`<${Sample} items=${group.sample} />`}</details>`}
  </article>`;
}

function Progress({ work, row, onDone }) {
  const acked = Math.min(work.done, Math.max(0, (row?.done ?? 0) - work.acked));
  return html`<div class="plan" role="status">
    <label>Put back <progress max=${work.all} value=${work.done}></progress> ${count(work.done)} of ${count(work.all)}</label>
    <label>Acked since <progress max=${Math.max(1, work.done)} value=${acked}></progress> ${count(acked)} of ${count(work.done)}</label>
    <div class="actions">${work.stop
      ? html`<${Button} onClick=${() => { work.stop.now = true; }}>Stop<//>`
      : html`<${Button} onClick=${onDone}>Close<//>`}</div>
  </div>`;
}

const Sample = ({ items, brief }) => html`<${Table} caption="Sample" rows=${items} rowKey=${(item) => item.message.id} columns=${[
  ["Message", (item) => (may("read") ? html`<a href=${link("messages", String(item.message.id))}>${item.message.id}</a>` : item.message.id), "number"],
  ["Topic", (item) => item.message.topic],
  ...(brief ? [] : [["Attempts", (item) => count(item.attempts), "number"]]),
  ["Headers", (item) => html`<${Headers} of=${item.message} />`, "wide"],
  ...(brief ? [] : [["Error", (item) => html`<pre class="error">${visible(item.error ?? "–")}</pre>`]]),
]} />`;
