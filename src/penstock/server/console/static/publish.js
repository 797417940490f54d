// Publishing one message, and which queues take it.

import { html, useState } from "./htm-preact.js";
import { path, post } from "./api.js";
import { link } from "./router.js";
import { may } from "./session.js";
import { Button, Field, Heading, Panel, Select, Snippet, Trouble, useAction } from "./parts.js";
import { snippets } from "./first_message.js";
import { numeric, plural } from "./format.js";

const BATCH = "application/vnd.penstock.batch+json";
const OPTIONS = [
  ["key", "Key", "text", "Replaces the waiting message of this key."],
  ["partition_key", "Partition key", "text", "Ordered queues keep the order within it."],
  ["id", "Idempotency id", "text", "The same id stores nothing twice."],
  ["priority", "Priority", "numeric", "0 to 9; 9 goes first. 4 if empty."],
  ["delay_ms", "Delay, ms", "numeric", "Delivered after this time."],
  ["ttl_ms", "Time to live, ms", "numeric", "Expires after this time."],
];

export function Publish({ topic: given }) {
  const [topic, setTopic] = useState(given ?? "");
  const [kind, setKind] = useState("json");
  const [payload, setPayload] = useState('{"order": 7}');
  const [headers, setHeaders] = useState([["", ""]]);
  const [values, setValues] = useState({});
  const [done, setDone] = useState([]);
  const { run, busy, error } = useAction();
  const bad = kind === "json" ? jsonError(payload) : "";
  const allowed = !topic.trim() || may("publish", topic.trim());
  const submit = (event) => {
    event.preventDefault();
    run(async () => {
      const message = { ...content(kind, payload), headers: typed(headers) };
      for (const [key, , mode] of OPTIONS) if (values[key]?.trim()) message[key] = mode === "numeric" ? numeric(values[key]) : values[key];
      const reply = await post(path`/v1/topics/${topic.trim()}/messages`, { messages: [message] }, { type: BATCH });
      setDone((old) => [{ topic: topic.trim(), ...reply.messages[0], durability: reply.durability }, ...old].slice(0, 10));
    });
  };
  const change = (i, j) => (event) => setHeaders((old) => {
    const next = old.map((pair) => [...pair]);
    next[i][j] = event.target.value;
    if (i === next.length - 1) next.push(["", ""]);
    return next;
  });
  return html`
    <${Heading} title="Publish" note="The reply comes when the message is on disk." />
    <form class="two wide-left" onSubmit=${submit}>
      <${Panel}>
        <${Field} label="Topic" required pattern="[A-Za-z0-9][A-Za-z0-9._\\-]*" value=${topic} onInput=${(event) => setTopic(event.target.value)}
          error=${allowed ? "" : "Your credential may not publish to this topic."} />
        <${Select} label="Type of payload" value=${kind} onChange=${setKind} options=${[["json", "JSON"], ["text", "text"], ["base64", "bytes, as base64"]]} />
        <${Field} label="Payload" error=${bad}>
          ${(own) => html`<textarea ...${own} class="code" rows="8" spellcheck="false" value=${payload} onInput=${(event) => setPayload(event.target.value)}></textarea>`}
        <//>
        <fieldset class="headers"><legend>Headers</legend>
          ${headers.map(([name, value], i) => html`<div class="pair" key=${i}>
            <input aria-label=${`Name of header ${i + 1}`} placeholder="amount" value=${name} onInput=${change(i, 0)} />
            <input aria-label=${`Value of header ${i + 1}`} placeholder="250" value=${value} onInput=${change(i, 1)} /></div>`)}
          <p class="hint">250, 2.5, true and false have their type; quotes make anything text.</p>
        </fieldset>
        <details><summary>Key, priority, delay and more</summary><div class="fields">
          ${OPTIONS.map(([key, label, mode, hint]) => html`<${Field} key=${key} label=${label} hint=${hint} inputmode=${mode} value=${values[key] ?? ""}
            onInput=${(event) => setValues((old) => ({ ...old, [key]: event.target.value }))} error=${error?.field === key ? error.message : ""} />`)}
        </div></details>
        <${Trouble} error=${error} />
        <div class="actions"><button type="submit" class="button primary" disabled=${busy || Boolean(bad) || !topic.trim() || !allowed}>Publish</button></div>
      <//>
      <div>
        <${Panel} title="Published here">
          <div role="status">${done.length
            ? html`<ul class="plain">${done.map((item) => html`<li key=${item.offset}>
                ${may("read") ? html`<a href=${link("messages", String(item.id))}>Message ${item.id}</a>` : `Message ${item.id}`} to ${item.topic}
                <span class="note"> ${outcome(item)}</span></li>`)}</ul>`
            : html`<p class="empty">Nothing yet.</p>`}</div>
        <//>
        <${Panel} title="The same from a program">
          ${snippets(topic.trim() || "orders", Object.keys(typed(headers)).length ? typed(headers) : { amount: 250 }).map(([title, text]) => html`<${Snippet} title=${title} text=${text} key=${title} />`)}
        <//>
      </div>
    </form>`;
}

function outcome(item) {
  if (item.duplicate) return "a duplicate: nothing was stored";
  const where = item.queues ? `in ${plural(item.queues, "queue")}` : "in the log; no queue takes it";
  return `${item.replaced ? "replaced the waiting one, " : ""}${where}, ${item.durability}`;
}

function jsonError(text) {
  try {
    JSON.parse(text);
    return "";
  } catch (error) {
    return `Not JSON: ${error.message}`;
  }
}

const content = (kind, text) => {
  if (kind === "json") return { payload: JSON.parse(text), content_type: "application/json" };
  if (kind === "text") return { payload_text: text };
  return { payload_base64: text.trim() };
};

/** Header values with their types, as on the command line. */
function typed(pairs) {
  const out = {};
  for (const [name, value] of pairs) {
    if (!name.trim()) continue;
    if (/^".*"$/.test(value)) out[name.trim()] = value.slice(1, -1);
    else if (/^-?\d{1,15}$/.test(value) || /^-?\d+\.\d+$/.test(value)) out[name.trim()] = Number(value);
    else out[name.trim()] = value === "true" ? true : value === "false" ? false : value;
  }
  return out;
}
