// The deliveries of a queue: browsed by state and filter, consuming nothing.

import { html, useEffect, useState } from "./htm-preact.js";
import { get, path, query } from "./api.js";
import { now } from "./live.js";
import { link } from "./router.js";
import { may } from "./session.js";
import { Button, Facts, Trouble } from "./parts.js";
import { FilterInput } from "./filter.js";
import { Payload, payloadBytes, preview } from "./payload.js";
import { ago, bytes, count, headerText, time, visible, words } from "./format.js";

const STATES = ["available", "in_flight", "delayed", "failed", "done", "expired"];
const PAGE = 50;

export function Messages({ queue, row }) {
  const [state, setState] = useState("available");
  const [where, setWhere] = useState("");
  const [asked, setAsked] = useState("");
  const [page, setPage] = useState({ items: [], cursor: null, error: null, loading: true });
  const load = async (cursor, signal) => {
    setPage((old) => ({ ...old, loading: true, error: null }));
    try {
      const target = path`/v1/queues/${queue}/deliveries` + query({ state, where: asked, limit: PAGE, cursor, payloads: true });
      const found = await get(target, { signal });
      setPage((old) => ({ items: cursor ? [...old.items, ...found.items] : found.items, cursor: found.cursor, error: null, loading: false }));
    } catch (error) {
      if (error.name !== "AbortError") setPage((old) => ({ ...old, error, loading: false }));
    }
  };
  useEffect(() => {
    const stop = new AbortController();
    load(null, stop.signal);
    return () => stop.abort();
  }, [queue, state, asked]);

  const known = [...new Set(page.items.flatMap((item) => Object.keys(item.message.headers ?? {})))].slice(0, 200);
  return html`<section class="browse" aria-label="Messages">
    <div class="bar">
      <div class="choice" role="group" aria-label="State">
        ${STATES.map((one) => html`<button key=${one} type="button" aria-pressed=${one === state ? "true" : "false"} onClick=${() => setState(one)}>
          ${words(one)} <small>${row ? count(row[one]) : ""}</small></button>`)}
      </div>
      <form class="where" onSubmit=${(event) => { event.preventDefault(); setAsked(where.trim()); }}>
        <${FilterInput} id="where" label="Only messages where" value=${where} onChange=${setWhere} headers=${known}
          placeholder="Only where, for example amount >= 100 AND country = 'DE'" onEnter=${() => setAsked(where.trim())} />
        <button type="submit" class="button">Search</button>
        <${Button} onClick=${() => load(null)}>Refresh<//>
      </form>
    </div>
    <${Trouble} error=${page.error} />
    <div class="scroll" tabindex="0" role="region" aria-label="Deliveries">
      <table class="dense">
        <caption class="hidden">Deliveries of ${queue} that are ${words(state)}</caption>
        <thead><tr>
          <th scope="col" class="number">Message</th><th scope="col">Topic</th><th scope="col">Published</th>
          <th scope="col" class="number wide">Attempts</th><th scope="col" class="number wide">Size</th><th scope="col" class="wide">Headers</th><th scope="col">Payload</th>
        </tr></thead>
        <tbody>${page.items.map((item) => html`<${Row} key=${item.message.id} item=${item} queue=${queue} />`)}</tbody>
      </table>
    </div>
    ${!page.items.length && !page.loading && !page.error && html`<p class="empty">No ${words(state)} deliveries${asked ? " match" : ""}.</p>`}
    ${page.cursor && html`<div class="actions"><${Button} onClick=${() => load(page.cursor)} disabled=${page.loading}>More<//></div>`}
  </section>`;
}

function Row({ item, queue }) {
  const [open, setOpen] = useState(false);
  const { message } = item;
  return html`
    <tr>
      <td class="number">${may("read") ? html`<a href=${link("messages", String(message.id))}>${message.id}</a>` : message.id}</td>
      <td>${message.topic}</td>
      <td class="nowrap" title=${time(message.published_at)}>${ago(message.published_at, now())}</td>
      <td class="number wide">${count(item.attempts)}</td>
      <td class="number wide">${bytes(message.size)}</td>
      <td class="code clip wide">${headerText(message.headers)}</td>
      <td class="code clip"><button type="button" class="reveal" aria-expanded=${open ? "true" : "false"} onClick=${() => setOpen(!open)}
        aria-label=${`Payload of message ${message.id}`}>${visible(preview(item)) || "(empty)"}</button></td>
    </tr>
    ${open && html`<tr class="detail"><td colspan="7">
      ${item.error && html`<pre class="error">${visible(item.error)}</pre>`}
      <${Facts} entries=${details(item)} />
      <${Payload} data=${payloadBytes(item)} contentType=${message.content_type} name=${`message-${message.id}`} />
    </td></tr>`}`;
}

function details(item) {
  const { message } = item;
  return [
    ["State", words(item.state)],
    ["Attempts", count(item.attempts)],
    ["Priority", message.priority],
    message.key && ["Key", visible(message.key)],
    message.partition_key && ["Partition", visible(message.partition_key)],
    item.consumer && ["Consumer", visible(item.consumer)],
    item.lease_deadline && ["Lease until", time(item.lease_deadline)],
    item.at && [item.state === "delayed" ? "Due" : "Since", time(item.at)],
    message.expires_at && ["Expires", time(message.expires_at)],
    ...Object.entries(message.headers ?? {}).map(([name, value]) => [visible(name), visible(String(value))]),
  ].filter(Boolean);
}
