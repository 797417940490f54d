// One message: its life across queues, its payload, and why a queue does not deliver it.

import { html, useEffect, useState } from "./htm-preact.js";
import { call, get, path, query, request } from "./api.js";
import { live, now } from "./live.js";
import { go, link } from "./router.js";
import { may } from "./session.js";
import { ask, Button, Facts, Field, Heading, Headers, Panel, say, Select, State, Table, Trouble, useAction, useId, useLoaded } from "./parts.js";
import { Payload } from "./payload.js";
import { ago, bytes, count, duration, plural, time, visible, words } from "./format.js";

/** Names offered for a queue; typing narrows them. */
const MOST_NAMES = 50;

export function Find() {
  const [by, setBy] = useState("number");
  const [text, setText] = useState("");
  const [topic, setTopic] = useState("");
  const [found, setFound] = useState(null);
  const { run, busy, error } = useAction();
  const recent = useLoaded(newest, []);
  const submit = (event) => {
    event.preventDefault();
    if (by === "number") {
      go(link("messages", text.trim()));
      return;
    }
    run(async () => setFound(await search(topic.trim(), by, text.trim())));
  };
  return html`
    <${Heading} title="Messages" note="Every message, whichever queues it is in. To browse one queue, open it from the overview." />
    <form class="bar find" onSubmit=${submit}>
      <${Select} label="Find by" value=${by} onChange=${(value) => { setBy(value); setFound(null); }}
        options=${[["number", "message number"], ["key", "key"], ["id", "idempotency id"]]} />
      ${by !== "number" && html`<${Field} label="Topic" required value=${topic} onInput=${(event) => setTopic(event.target.value)} />`}
      <${Field} label=${by === "number" ? "Number" : by === "key" ? "Key" : "Id"} required inputmode=${by === "number" ? "numeric" : "text"}
        pattern=${by === "number" ? "[0-9]+" : undefined} value=${text} onInput=${(event) => setText(event.target.value)} />
      <button type="submit" class="button primary" disabled=${busy}>Find</button>
    </form>
    <${Trouble} error=${error} />
    ${found && html`<${Panel} title=${`${plural(found.length, "message")} found`}><${List} messages=${found} /><//>`}
    <${Panel} title="Newest in the log" actions=${html`<${Button} onClick=${recent.reload}>Refresh<//>`}>
      <${Trouble} error=${recent.error} />
      ${recent.value?.length === 0 && html`<p class="empty">The log is empty.</p>`}
      ${recent.value?.length > 0 && html`<${List} messages=${recent.value} />`}
    <//>`;
}

async function newest(signal) {
  const [end, start] = await Promise.all([get("/v1/log/end", { signal }), get("/v1/log/start", { signal })]);
  const page = await get("/v1/log" + query({ from: Math.max(start.offset, end.offset - 50), limit: 50 }), { signal });
  return page.entries.map((entry) => entry.message).reverse();
}

async function search(topic, by, text) {
  const out = [];
  let from = null;
  do {
    const page = await get(path`/v1/topics/${topic}/messages` + query({ [by]: text, from }));
    out.push(...page.messages);
    from = page.next_offset;
  } while (from !== null && from !== undefined && out.length < 100);
  return out;
}

const List = ({ messages }) => html`<${Table} caption="Messages" rows=${messages} rowKey=${(message) => message.offset} columns=${[
  ["Message", (message) => html`<a href=${link("messages", String(message.id))}>${message.id}</a>`, "number"],
  ["Topic", (message) => message.topic],
  ["Published", (message) => html`<span class="nowrap" title=${time(message.published_at)}>${ago(message.published_at, now())}</span>`],
  ["Size", (message) => bytes(message.size), "number wide"],
  ["Headers", (message) => html`<${Headers} of=${message} />`],
]} />`;

export function Message({ id }) {
  const found = useLoaded((signal) => load(id, signal), [id]);
  const { run, busy, error } = useAction();
  if (found.error) return html`<${Heading} title=${`Message ${id}`} /><${Trouble} error=${found.error} /><p><a href="#/messages">Find a message</a></p>`;
  if (!found.value) return html`<${Heading} title=${`Message ${id}`} />`;
  const { message, deliveries, payload, events } = found.value;
  const cancel = async () => {
    const names = deliveries.map((item) => item.queue);
    const yes = await ask({
      title: `Cancel message ${id}?`, yes: "Cancel the message",
      details: html`<p>This removes it from ${names.length ? names.join(", ") : "every queue"}, in whatever state it is. A consumer that holds it can no longer settle it. The message stays in the log.</p>`,
    });
    if (!yes) return;
    await run(async () => {
      const reply = await call("DELETE", path`/v1/messages/${id}`);
      say(`Message ${id} was removed from ${plural(reply.count, "queue")}.`);
      found.reload();
    });
  };
  return html`
    <${Heading} title=${`Message ${id}`} note=${`${message.topic}, published ${ago(message.published_at, now())}`}>
      <${Button} onClick=${found.reload}>Refresh<//>
      ${may("admin") && deliveries.length > 0 && html`<${Button} kind="danger" onClick=${cancel} disabled=${busy}>Cancel…<//>`}
    <//>
    <${Trouble} error=${error} />
    <div class="two wide-left">
      <div>
        <${Panel} title="In queues">
          ${deliveries.length ? html`<${Table} caption="Deliveries" rows=${deliveries} rowKey=${(item) => item.queue} columns=${[
            ["Queue", (item) => html`<a href=${link("queues", item.queue.replace(/\.dlq$/, ""))}>${item.queue}</a>`],
            ["State", (item) => html`<${State} state=${item.state} />`],
            ["Attempts", (item) => count(item.attempts), "number"],
            ["Remark", (item) => html`<span class="note">${remark(item)}</span>`],
          ]} />` : html`<p class="empty">No queue has it.</p>`}
        <//>
        <${Explain} id=${id} deliveries=${deliveries} />
        <${Panel} title="Timeline"><${Timeline} events=${events} /><//>
      </div>
      <div>
        <${Panel} title="Payload"><${Payload} data=${payload} contentType=${message.content_type} name=${`message-${id}`} /><//>
        <${Panel} title="Metadata"><${Facts} entries=${metadata(message)} /><//>
      </div>
    </div>`;
}

async function load(id, signal) {
  const [found, raw, history] = await Promise.all([
    get(path`/v1/messages/${id}` + "?payload=false", { signal }),
    request("GET", path`/v1/messages/${id}/payload`, { signal }).then((reply) => reply.arrayBuffer()),
    get(path`/v1/messages/${id}/history`, { signal }),
  ]);
  return { message: found.message, deliveries: found.deliveries, payload: new Uint8Array(raw), events: history.events };
}

function remark(item) {
  if (item.state === "in_flight") return `${visible(item.consumer)} until ${time(item.lease_deadline)}`;
  if (item.state === "delayed") return `due ${time(item.at)}`;
  return item.error ? visible(item.error) : item.at ? time(item.at) : "";
}

const metadata = (message) => [
  ["Topic", message.topic],
  ["Offset", message.offset],
  ["Published", time(message.published_at)],
  message.deliver_at !== message.published_at && ["Deliver at", time(message.deliver_at)],
  message.expires_at && ["Expires", time(message.expires_at)],
  ["Priority", message.priority],
  message.key && ["Key", visible(message.key)],
  message.partition_key && ["Partition", visible(message.partition_key)],
  ["Content type", visible(message.content_type ?? "–")],
  ["Size", bytes(message.size)],
  ...Object.entries(message.headers ?? {}).map(([name, value]) => [visible(name), html`<span class="code">${visible(String(value))}</span>`]),
].filter(Boolean);

/** Queues to choose from: those that have the message first. */
function names(own, text) {
  const wanted = own.includes(text) ? "" : text.toLowerCase();
  const found = new Set(own);
  for (const name of live.get().queues.keys()) {
    if (found.size >= MOST_NAMES) break;
    if (name.toLowerCase().includes(wanted)) found.add(name);
  }
  return [...found];
}

/** Why does this queue not hand it out? */
function Explain({ id, deliveries }) {
  const own = deliveries.map((item) => item.queue);
  const [chosen, setChosen] = useState(() => names(own, "")[0] ?? "");
  const [text, setText] = useState(chosen);
  const [known, setKnown] = useState([]);
  const list = useId();
  const choose = (value) => {
    setText(value);
    setKnown(names(own, value));
    if (own.includes(value) || live.get().queues.has(value.replace(/\.dlq$/, ""))) setChosen(value);
  };
  const found = useLoaded((signal) => (chosen ? get(path`/v1/messages/${id}/explain` + query({ queue: chosen }), { signal }) : Promise.resolve(null)), [id, chosen]);
  const why = found.value;
  return html`<${Panel} title="Why is it delivered, or not?">
    <${Field} label="In queue" hint=${text === chosen || !text ? "Any queue: also one that did not take it." : "There is no such queue."} list=${list} value=${text} autocomplete="off" spellcheck="false"
      onInput=${(event) => choose(event.target.value)} onFocus=${(event) => { event.target.select(); choose(event.target.value); }} />
    <datalist id=${list}>${known.map((name) => html`<option value=${name} />`)}</datalist>
    <${Trouble} error=${found.error} />
    ${why && html`<div class="why" role="status"><p><strong>${why.deliverable ? "A claim could hand it out now." : why.state === null ? "It is not in this queue." : `It is ${words(why.state)}.`}</strong></p>
      <ul>${why.reasons.map((reason) => html`<li>${reason}</li>`)}</ul></div>`}
  <//>`;
}

/** Every transition, in one column per queue. */
function Timeline({ events }) {
  if (!events.length) return html`<p class="empty">No transition is on record.</p>`;
  const lanes = [...new Set(events.map((event) => event.queue.replace(/\.dlq$/, "")))];
  return html`<ol class="timeline">
    ${events.map((event, i) => {
      const lane = lanes.indexOf(event.queue.replace(/\.dlq$/, ""));
      const since = i ? event.at - events[i - 1].at : 0;
      return html`<li key=${i} class=${event.state ?? ""}>
        <time datetime=${new Date(event.at).toISOString()} title=${time(event.at)}>${i && since < 86_400_000 ? `+${duration(since)}` : time(event.at)}</time>
        <span class="lanes" style=${{ width: `${Math.min(lanes.length, 8) * 14}px` }} aria-hidden="true"><i style=${{ left: `${Math.min(lane, 7) * 14}px` }}></i></span>
        <span><b>${words(event.transition)}</b> in ${event.queue}${event.state ? html` <${State} state=${event.state} />` : ""}
          ${event.consumer && html` <span class="note">by ${visible(event.consumer)}</span>`}
          ${event.error && html`<span class="error">${visible(event.error)}</span>`}</span>
      </li>`;
    })}
  </ol>`;
}
