// One queue: its counts and past, its policy, and what may be done with it.

import { html, useEffect, useState } from "./htm-preact.js";
import { call, get, path, post } from "./api.js";
import { attention, live, now } from "./live.js";
import { go, link } from "./router.js";
import { useStore } from "./store.js";
import { may, mayAny } from "./session.js";
import { ask, Button, Facts, Field, Heading, Ledger, Panel, say, Select, Snippet, Trouble, useAction, useLoaded } from "./parts.js";
import { Past } from "./chart.js";
import { snippets } from "./first_message.js";
import { Messages } from "./messages.js";
import { Failures } from "./failures.js";
import { Consumers } from "./consumers.js";
import { age, count, duration, numeric, plural, rate, visible, words } from "./format.js";

const TABS = [["", "Summary"], ["messages", "Messages"], ["failures", "Dead letters"], ["consumers", "Consumers"]];

export function Queue({ name, tab }) {
  const row = useStore(live).queues.get(name);
  const info = useLoaded((signal) => get(path`/v1/queues/${name}`, { signal }), [name]);
  const { run, busy, error } = useAction();
  const [editing, setEditing] = useState(false);
  const admin = may("admin", name);
  useEffect(() => document.querySelector(".tabs [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [tab]);
  if (info.error) return html`<${Heading} title=${name} /><${Trouble} error=${info.error} /><p><a href="#/">All queues</a></p>`;
  const paused = row ? row.paused : info.value?.policy.paused;

  const pause = () => run(async () => {
    await post(path`/v1/queues/${name}/${paused ? "resume" : "pause"}`);
    say(paused ? `${name} hands out deliveries again.` : `${name} hands out nothing until it is resumed.`);
    info.reload();
  });
  const remove = async () => {
    const live_count = row ? row.available + row.delayed + row.in_flight : null;
    const yes = await ask({
      title: `Delete the queue ${name}?`, yes: "Delete the queue",
      details: html`<p>This removes the queue, ${live_count === null ? "its deliveries" : plural(live_count, "delivery", "deliveries")} to hand out
        and ${row ? plural(row.failed, "dead letter") : "its dead letters"}. The messages stay in the log and in other queues.</p>`,
    });
    if (!yes) return;
    await run(async () => {
      await call("DELETE", path`/v1/queues/${name}`);
      say(`${name} was deleted.`);
      go("#/");
    });
  };

  return html`
    <${Heading} title=${name} note=${visible(info.value?.policy.description ?? "")}>
      ${paused && html`<span class="state paused">paused</span>`}
      ${mayAny("publish") && html`<a class="button" href=${link("publish", ...topicOf(info.value?.policy.filter))}>Publish</a>`}
      ${admin && html`<${Button} onClick=${pause} disabled=${busy}>${paused ? "Resume" : "Pause"}<//>
        <${Button} onClick=${() => { setEditing(!editing); if (tab) go(link("queues", name)); }} aria-expanded=${editing ? "true" : "false"}>Edit policy<//>
        <${Button} kind="danger" onClick=${remove} disabled=${busy}>Delete…<//>`}
    <//>
    <${Trouble} error=${error} />
    ${row && html`<${Counts} row=${row} />`}
    <nav class="tabs" aria-label=${`Parts of ${name}`}>
      ${TABS.map(([key, text]) => html`<a key=${key} href=${key ? link("queues", name, key) : link("queues", name)} aria-current=${key === tab ? "page" : undefined}>
        ${text}${key === "failures" && row?.failed ? html` <b class="bad">${count(row.failed)}</b>` : ""}</a>`)}
    </nav>
    ${tab === "" && html`<${Summary} name=${name} row=${row} info=${info} editing=${editing} onEdited=${() => { setEditing(false); info.reload(); }} />`}
    ${tab === "messages" && html`<${Messages} queue=${name} row=${row} />`}
    ${tab === "failures" && html`<${Failures} queue=${name} row=${row} />`}
    ${tab === "consumers" && html`<${Consumers} queue=${name} />`}`;
}

function Counts({ row }) {
  const why = attention(row, now());
  return html`<${Ledger} label="Counts" entries=${[
    ["Available", count(row.available), "accent"],
    ["In flight", count(row.in_flight)],
    ["Delayed", count(row.delayed)],
    ["Failed", count(row.failed), row.failed ? "bad" : ""],
    ["Done", count(row.done)],
    ["Expired", count(row.expired)],
    ["Oldest waiting", row.oldest_at === null ? "–" : age(now() - row.oldest_at)],
    ["In", `${rate(row.entered_per_s)}/s`],
    ["Claimed", `${rate(row.claimed_per_s)}/s`],
    ["Acked", `${rate(row.acked_per_s)}/s`],
  ]} />${why && why[1] !== "has dead letters" && html`<p class=${why[0] > 3 ? "remark bad" : "remark"}>This queue: ${why[1]}.</p>`}`;
}

function Summary({ name, row, info, editing, onEdited }) {
  if (!info.value) return null;
  const { policy } = info.value;
  const empty = row && row.available + row.in_flight + row.delayed + row.done + row.failed + row.expired === 0;
  return html`
    ${editing && html`<${PolicyEditor} name=${name} policy=${policy} onDone=${onEdited} />`}
    ${empty && html`<${Teach} policy=${policy} />`}
    <${Past} queue=${name} />
    <div class="two">
      <${Panel} title="Filter and policy">
        <pre class="filter-text" tabindex="0" role="region" aria-label="Filter">${policy.filter}</pre>
        <${Facts} entries=${facts(info.value)} />
      <//>
      <div>
        ${may("admin", name) && html`<${Purge} name=${name} row=${row} />`}
      </div>
    </div>`;
}

function facts(info) {
  const { policy } = info;
  return [
    ["Attempts", count(policy.max_attempts)],
    ["Lease", duration(policy.lease_ms)],
    ["Backoff", `${duration(policy.backoff.base_ms)} to ${duration(policy.backoff.max_ms)}`],
    ["Order", policy.ordering === "partition" ? "by partition" : "priority, then publish order"],
    ["Most waiting", policy.max_depth === null ? "unlimited" : count(policy.max_depth)],
    ["Throughput limit", policy.throughput_limit === null ? "unlimited" : `${count(policy.throughput_limit)}/s`],
    ["Time to live", policy.message_ttl_ms === null ? "unlimited" : duration(policy.message_ttl_ms)],
    ["Keeps done", policy.done_retention_s ? duration(policy.done_retention_s * 1000) : "for ever"],
    ["Keeps failed", policy.dead_letters ? (policy.failed_retention_s ? duration(policy.failed_retention_s * 1000) : "for ever") : "no"],
    ["Dead-letter topic", policy.dead_letter_topic ?? "none"],
    ["Catching up", info.cursor === null ? "no: has seen the whole log" : `at offset ${count(info.cursor)}`],
    ["Labels", Object.entries(policy.labels).map(([key, value]) => visible(`${key}=${value}`)).join(", ") || "none"],
  ];
}

/** A topic that the filter names, if it names one. */
const topicOf = (filter = "") => /\btopic\s*=\s*'([A-Za-z0-9._-]+)'/i.exec(filter)?.slice(1) ?? [];

function Teach({ policy }) {
  const topic = topicOf(policy.filter)[0] ?? "orders";
  return html`<${Panel} class="teach" title="No message has come here yet">
    <p>The queue takes every message for which its filter is TRUE. Publish one, and it appears here.</p>
    <div class="snippets">${snippets(topic).map(([title, text]) => html`<${Snippet} title=${title} text=${text} key=${title} />`)}</div>
  <//>`;
}

// -- changing the policy ------------------------------------------------------------

const NUMBERS = [
  ["max_attempts", "Attempts", "Before a delivery fails."],
  ["lease_ms", "Lease, ms", "How long a consumer has, unless it asks for another time."],
  ["done_retention_s", "Keep done, s", "0 keeps them for ever."],
  ["failed_retention_s", "Keep failed, s", "0 keeps them for ever."],
  ["max_depth", "Most waiting", "Empty is unlimited."],
  ["throughput_limit", "Deliveries per second", "Empty is unlimited."],
  ["message_ttl_ms", "Time to live, ms", "Empty is unlimited."],
];

function PolicyEditor({ name, policy, onDone }) {
  const [values, setValues] = useState(() => ({
    filter: policy.filter, description: policy.description,
    ...Object.fromEntries(NUMBERS.map(([key]) => [key, policy[key] === null ? "" : String(policy[key])])),
  }));
  const { run, busy, error } = useAction();
  const set = (key) => (event) => setValues((old) => ({ ...old, [key]: event.target.value }));
  const submit = (event) => {
    event.preventDefault();
    const changes = {};
    for (const key of ["filter", "description"]) if (values[key] !== policy[key]) changes[key] = values[key];
    for (const [key] of NUMBERS) {
      const value = values[key].trim() === "" ? 0 : numeric(values[key]);
      if (value !== (policy[key] ?? 0)) changes[key] = value;
    }
    run(async () => {
      await call("PATCH", path`/v1/queues/${name}`, changes);
      say(`The policy of ${name} was changed.`);
      onDone();
    });
  };
  const wrong = (key) => (error?.field === key ? error.message : "");
  return html`<${Panel} title="Edit the policy">
    <form onSubmit=${submit}>
      <${Field} label="Filter" class="whole" value=${values.filter} onInput=${set("filter")} error=${wrong("filter")}
        hint="Applies to messages that are published from now on." />
      <${Field} label="Description" class="whole" value=${values.description} onInput=${set("description")} error=${wrong("description")} />
      <div class="fields">${NUMBERS.map(([key, label, hint]) => html`<${Field} key=${key} label=${label} hint=${hint} inputmode="numeric"
        value=${values[key]} onInput=${set(key)} error=${wrong(key)} />`)}</div>
      <${Trouble} error=${error} />
      <div class="actions"><button type="submit" class="button primary" disabled=${busy}>Save<//><${Button} onClick=${onDone}>Cancel<//></div>
    </form>
  <//>`;
}

// -- purging ---------------------------------------------------------------------------

const PURGED = ["available", "delayed", "done", "failed", "expired"];

function Purge({ name, row }) {
  const [state, setState] = useState("available");
  const [where, setWhere] = useState("");
  const { run, busy, error } = useAction();
  const purge = async () => {
    const which = where.trim() ? `that match ${where.trim()}` : `of the ${count(row?.[state])} there are`;
    const yes = await ask({
      title: `Purge ${words(state)} deliveries of ${name}?`, yes: "Purge",
      details: html`<p>This removes for good the ${words(state)} deliveries ${which}. It cannot be undone. The messages stay in the log and in other queues.</p>`,
    });
    if (!yes) return;
    await run(async () => {
      let removed = 0;
      for (let more = true; more;) {
        const reply = await post(path`/v1/queues/${name}/purges`, { state, ...(where.trim() ? { where: where.trim() } : {}) });
        removed += reply.count;
        more = reply.more;
      }
      say(`${plural(removed, "delivery", "deliveries")} of ${name} removed.`);
    });
  };
  return html`<${Panel} title="Purge">
    <p class="note">Removes deliveries from this queue for good.</p>
    <div class="fields">
      <${Select} label="State" value=${state} onChange=${setState} options=${PURGED.map((one) => [one, `${words(one)}${row ? ` (${count(row[one])})` : ""}`])} />
      <${Field} label="Only where (a filter)" value=${where} onInput=${(event) => setWhere(event.target.value)} placeholder="country = 'AT'" />
    </div>
    <${Trouble} error=${error} />
    <div class="actions"><${Button} kind="danger" onClick=${purge} disabled=${busy}>Purge…<//></div>
  <//>`;
}
