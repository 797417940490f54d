// Who holds deliveries of a queue, and who owns its partitions.

import { html } from "./htm-preact.js";
import { get, path } from "./api.js";
import { Facts, Panel, Table, Trouble, useEvery, useLoaded } from "./parts.js";
import { count, plural, visible } from "./format.js";

const REFRESH_MS = 2_000;
const MOST_PARTITIONS = 1_000;

export function Consumers({ queue }) {
  const found = useLoaded((signal) => get(path`/v1/queues/${queue}/stats`, { signal }), [queue]);
  useEvery(REFRESH_MS, found.reload);
  const stats = found.value;
  if (!stats) return html`<${Trouble} error=${found.error} />`;
  const holding = Object.entries(stats.in_flight_by_consumer);
  return html`<${Trouble} error=${found.error} />
    <div class="two">
      <${Panel} title="Consumers">
        ${holding.length
          ? html`<${Table} caption="Deliveries in flight by consumer" rows=${holding} rowKey=${([name]) => name}
              columns=${[["Consumer", ([name]) => visible(name)], ["In flight", ([, number]) => count(number), "number"]]} />`
          : html`<p class="empty">No consumer holds a delivery of this queue.</p>`}
      <//>
      <${Panel} title="Since the queue was created">
        <${Facts} entries=${[["Claimed", count(stats.grants)], ["Acked", count(stats.acks)], ["Nacked", count(stats.nacks)], ["Failed", count(stats.failures)],
          ["Settled through", stats.watermark < 0 ? "–" : `message ${stats.watermark}`], ["Lag", plural(stats.lag, "message")]]} />
      <//>
    </div>
    ${stats.partitions.length > 0 && html`<${Panel} title=${plural(stats.partitions.length, "partition")}>
      <${Table} caption="Partitions" rows=${stats.partitions.slice(0, MOST_PARTITIONS)} rowKey=${(one) => one.partition} columns=${[
        ["Partition", (one) => visible(one.partition) || "(none)"],
        ["Owner", (one) => one.owner !== null && one.owner !== undefined ? visible(one.owner) : html`<span class="note">free</span>`],
        ["Epoch", (one) => count(one.epoch), "number"],
        ["Unsettled", (one) => count(one.unsettled), "number"],
        ["In flight", (one) => count(one.in_flight), "number"],
        ["Settled through", (one) => (one.watermark < 0 ? "–" : one.watermark), "number wide"],
      ]} />
    <//>`}`;
}
