// Which queues have dead letters.

import { html, useMemo, useState } from "./htm-preact.js";
import { live } from "./live.js";
import { link } from "./router.js";
import { useStore } from "./store.js";
import { Heading } from "./parts.js";
import { sorted, VirtualTable } from "./table.js";
import { count, plural, rate } from "./format.js";

const COLUMNS = [
  { key: "queue", title: "Queue", kind: "name", sort: (row) => row.queue, cell: (row) => html`<a href=${link("queues", row.queue, "failures")}>${row.queue}</a>` },
  { key: "failed", title: "Dead letters", kind: "number", sort: (row) => row.failed, cell: (row) => count(row.failed) },
  { key: "rate", title: "Failing/s", kind: "number", sort: (row) => row.failed_per_s, cell: (row) => rate(row.failed_per_s) },
  { key: "done", title: "Done", kind: "number wide", sort: (row) => row.done, cell: (row) => count(row.done) },
];

export function DeadLetters() {
  const shown = useStore(live);
  const [order, setOrder] = useState({ key: "failed", down: true });
  const rows = useMemo(() => sorted([...shown.queues.values()].filter((row) => row.failed), COLUMNS, order), [shown.version, order]);
  const sum = rows.reduce((all, row) => all + row.failed, 0);
  return html`
    <${Heading} title="Dead letters" note=${rows.length ? `${plural(sum, "dead letter")} in ${plural(rows.length, "queue")}. Open a queue to see them by error.` : undefined} />
    ${rows.length
      ? html`<${VirtualTable} label="Queues with dead letters" columns=${COLUMNS} rows=${rows} turn=${shown} order=${order} onOrder=${setOrder} rowKey=${(row) => row.queue} />`
      : html`<p class="empty">No queue has dead letters. Deliveries that run out of attempts, or that a worker rejects, are kept here with their error until you replay or purge them.</p>`}`;
}
