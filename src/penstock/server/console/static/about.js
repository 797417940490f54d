// The server: health, store, version, and the limits that are in force.

import { html } from "./htm-preact.js";
import { get, server } from "./api.js";
import { may, mayAny } from "./session.js";
import { Button, Facts, Heading, Panel, Trouble, useLoaded } from "./parts.js";
import { bytes, count, duration, words } from "./format.js";

export function About() {
  const found = useLoaded(load, []);
  const { health, ready, store, log, limits } = found.value ?? {};
  return html`
    <${Heading} title="About"><${Button} onClick=${found.reload}>Refresh<//><//>
    <${Trouble} error=${found.error} />
    ${health && html`<div class="two">
      <${Panel} title="Server"><${Facts} entries=${[
        ["Version", health.version], ["Address", server()], ["Role", health.role],
        ["Can commit", ready === true ? "yes: it just did" : html`<span class="bad">${ready}</span>`],
      ]} /><//>
      ${store && html`<${Panel} title="Store"><${Facts} entries=${[
        ["Identity", html`<span class="code">${store.store}</span>`], ["Epoch", html`<span class="code">${store.epoch}</span>`],
        ...(log ? [["First offset", count(log.start)], ["End of the log", count(log.end)]] : []),
      ]} /><//>`}
      <${Panel} title="Limits"><${Facts} entries=${Object.entries(limits ?? {}).map(limit)} /><//>
      <${Panel} title="Further">
        <ul class="plain">
          <li><a href=${`${server()}/openapi.json`}>OpenAPI document</a></li>
          <li><a href=${`${server()}/healthz`}>Health</a></li>
        </ul>
        <p class="note">The console uses htm and Preact, and uPlot, under the MIT and Apache 2.0 licences.</p>
      <//>
    </div>`}`;
}

/** A limit without the unit in its name, which is then in its value. */
function limit([name, value]) {
  const [, what, unit] = /^(.*)_(bytes|ms|s)$/.exec(name) ?? [null, name, ""];
  const shown = { bytes: bytes, ms: duration, s: (seconds) => duration(seconds * 1000), "": count }[unit];
  return [words(what), typeof value === "number" ? shown(value) : String(value)];
}

async function load(signal) {
  const options = { signal };
  const [health, ready, document, store, log] = await Promise.all([
    get("/healthz", options),
    get("/readyz", options).then(() => true, (error) => error.message),
    get("/openapi.json", options),
    mayAny("read") ? get("/v1/store", options) : null,
    may("read") ? Promise.all([get("/v1/log/start", options), get("/v1/log/end", options)]).then(([start, end]) => ({ start: start.offset, end: end.offset })) : null,
  ]);
  return { health, ready, store, log, limits: document["x-limits"] };
}
