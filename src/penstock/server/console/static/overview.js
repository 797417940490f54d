// All queues: totals, what needs attention, and a table that stays smooth with ten thousand rows.

import { html, useEffect, useMemo, useRef, useState } from "./htm-preact.js";
import { attention, live, now, totals } from "./live.js";
import { link } from "./router.js";
import { useStore } from "./store.js";
import { may, mayAny } from "./session.js";
import { Heading, Ledger, Panel } from "./parts.js";
import { Past } from "./chart.js";
import { sorted, VirtualTable } from "./table.js";
import { FirstMessage } from "./first_message.js";
import { age, count, rate, short } from "./format.js";

const MOST_URGENT = 5;

export const COLUMNS = [
  { key: "queue", title: "Queue", kind: "name", sort: (row) => row.queue,
    cell: (row) => html`<a href=${link("queues", row.queue)}>${row.queue}</a>` },
  { key: "available", title: "Available", kind: "number", sort: (row) => row.available, cell: (row) => count(row.available) },
  { key: "in_flight", title: "In flight", kind: "number wide", sort: (row) => row.in_flight, cell: (row) => count(row.in_flight) },
  { key: "delayed", title: "Delayed", kind: "number wider", sort: (row) => row.delayed, cell: (row) => count(row.delayed) },
  { key: "failed", title: "Failed", kind: "number", sort: (row) => row.failed,
    cell: (row) => (row.failed ? html`<a class="bad" href=${link("queues", row.queue, "failures")}>${count(row.failed)}</a>` : "0") },
  { key: "oldest", title: "Oldest", kind: "number", sort: (row) => -(row.oldest_at ?? Infinity),
    cell: (row) => (row.oldest_at === null ? "–" : age(now() - row.oldest_at)) },
  { key: "in", title: "In/s", kind: "number wide", sort: (row) => row.entered_per_s, cell: (row) => rate(row.entered_per_s) },
  { key: "out", title: "Acked/s", kind: "number wide", sort: (row) => row.acked_per_s, cell: (row) => rate(row.acked_per_s) },
  { key: "note", title: "Note", kind: "text wider", cell: (row) => {
    const found = attention(row, now());
    return found ? html`<span class=${found[0] > 3 ? "bad" : "note"}>${found[1]}</span>` : "";
  } },
];

export function Overview() {
  const shown = useStore(live);
  const [text, setText] = useState("");
  const [order, setOrder] = useState({ key: "queue", down: false });
  const search = useRef();
  const sum = useMemo(() => totals(shown.queues), [shown.version]);
  const rows = useMemo(() => {
    const wanted = text.trim().toLowerCase();
    const all = [...shown.queues.values()];
    return sorted(wanted ? all.filter((row) => row.queue.toLowerCase().includes(wanted)) : all, COLUMNS, order);
  }, [shown.version, text, order]);

  useEffect(() => {
    const slash = (event) => {
      if (event.key !== "/" || /^(input|textarea|select)$/i.test(event.target.tagName)) return;
      event.preventDefault();
      search.current?.focus();
    };
    addEventListener("keydown", slash);
    return () => removeEventListener("keydown", slash);
  }, []);

  if (shown.state === "open" && !shown.queues.size) return html`<${Heading} title="Overview" /><${FirstMessage} />`;
  return html`
    <${Heading} title="Overview" note=${shown.state === "open" ? undefined : "Waiting for the server."}>
      ${mayAny("publish") && html`<a class="button" href="#/publish">Publish</a>`}
      ${mayAny("admin") && html`<a class="button primary" href="#/new">New queue</a>`}
    <//>
    <${Ledger} label="All queues" entries=${[
      ["Queues", count(sum.queues)],
      ["Available", short(sum.available), "accent"],
      ["In flight", short(sum.in_flight)],
      ["Delayed", short(sum.delayed)],
      ["Failed", short(sum.failed), sum.failed ? "bad" : ""],
      ["Oldest waiting", sum.oldest_at === null ? "–" : age(now() - sum.oldest_at)],
      ["In", `${rate(sum.entered)}/s`],
      ["Acked", `${rate(sum.acked)}/s`],
    ]} />
    <div class="overview">
      ${may("read") && html`<${Past} />`}
      <${Attention} queues=${shown.queues} state=${shown.state} />
    </div>
    <${Panel} class="queues" title="Queues" actions=${html`
      <label class="search"><span class="hidden">Search queues</span>
        <input ref=${search} type="search" placeholder="Search queues ( / )" value=${text} onInput=${(event) => setText(event.target.value)} /></label>`}>
      <${VirtualTable} label="Queues" columns=${COLUMNS} rows=${rows} turn=${shown} order=${order} onOrder=${setOrder} rowKey=${(row) => row.queue}
        rowKind=${(row) => (row.paused ? "paused" : "")} />
    <//>`;
}

function Attention({ queues, state }) {
  const at = now();
  const found = [];
  for (const queue of queues.values()) {
    const why = attention(queue, at);
    if (why) found.push([why[0], queue, why[1]]);
  }
  found.sort((a, b) => b[0] - a[0] || b[1].failed + b[1].available - a[1].failed - a[1].available);
  const more = found.length - MOST_URGENT;
  return html`<${Panel} class="attention" title="Needs attention">
    ${found.length ? html`<ul>
      ${found.slice(0, MOST_URGENT).map(([severity, queue, why]) => html`<li key=${queue.queue} class=${severity > 3 ? "bad" : ""}>
        <a href=${link("queues", queue.queue, ...(severity === 4 || why === "has dead letters" ? ["failures"] : []))}>${queue.queue}</a>
        <span class="note">${why}</span>
        <b>${short(queue.failed && severity !== 3 && severity !== 2 ? queue.failed : queue.available)}</b>
      </li>`)}
    </ul>` : html`<p class="note">${state === "open" ? "Nothing: every queue is being consumed, and none has dead letters." : "Waiting for the counts."}</p>`}
    ${more > 0 && html`<p class="note">and ${count(more)} more</p>`}
  <//>`;
}
