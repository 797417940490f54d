// A new queue: while the filter is typed, the page shows what it takes from the log.

import { html, useEffect, useState } from "./htm-preact.js";
import { call, get, path, query } from "./api.js";
import { go, link } from "./router.js";
import { may } from "./session.js";
import { Field, Heading, Headers, Panel, say, Select, Table, Trouble, useAction, useLoaded } from "./parts.js";
import { FilterInput } from "./filter.js";
import { count, numeric, plural, time } from "./format.js";

/** The newest messages are looked at first: the answer comes while typing. */
const NEWEST = 5_000;
const PAUSE_MS = 250;
const WHOLE_PAUSE_MS = 900;

const NUMBERS = [["max_attempts", "Attempts", "5"], ["lease_ms", "Lease, ms", "30000"], ["max_depth", "Most waiting", ""]];

export function NewQueue() {
  const [name, setName] = useState("");
  const [text, setText] = useState("");
  const [valid, setValid] = useState(null);
  const [start, setStart] = useState({ kind: "latest", value: "" });
  const [ordering, setOrdering] = useState("none");
  const [values, setValues] = useState({ max_attempts: "", lease_ms: "", max_depth: "" });
  const { run, busy, error } = useAction();
  const headers = useLoaded(knownHeaders, []);
  const submit = (event) => {
    event.preventDefault();
    const policy = { filter: text.trim() || "TRUE", ordering };
    for (const [key] of NUMBERS) if (values[key].trim()) policy[key] = numeric(values[key]);
    run(async () => {
      await call("PUT", path`/v1/queues/${name.trim()}` + query({ start: startOf(start), if_exists: "refuse" }), policy);
      say(`The queue ${name.trim()} was created.`);
      go(link("queues", name.trim()));
    });
  };
  const wrong = (key) => (error?.field === key ? error.message : "");
  return html`
    <${Heading} title="New queue" note="A queue takes every message for which its filter is TRUE." />
    <form class="two wide-left" onSubmit=${submit}>
      <div>
        <${Panel}>
          <${Field} label="Name" required pattern="[A-Za-z0-9][A-Za-z0-9._\\-]*" maxlength="128" value=${name} onInput=${(event) => setName(event.target.value)}
            error=${wrong("name") || wrong("queue") || (name && !may("admin", name) ? "Your credential may not create a queue of this name." : "")} />
          <div class="field">
            <label for="filter">Filter</label>
            <${FilterInput} id="filter" label="Filter" value=${text} onChange=${setText} onChecked=${setValid} headers=${headers.value ?? []}
              placeholder="topic = 'orders' AND amount >= 100" />
            <p class="hint">${indexed(valid)}</p>
          </div>
          <${Start} start=${start} onChange=${setStart} />
          <div class="fields">
            <${Select} label="Order" value=${ordering} onChange=${setOrdering} options=${[["none", "priority, then publish order"], ["partition", "strict within a partition"]]} />
            ${NUMBERS.map(([key, label, standard]) => html`<${Field} key=${key} label=${label} inputmode="numeric" placeholder=${standard || "unlimited"} value=${values[key]} error=${wrong(key)}
              onInput=${(event) => setValues((old) => ({ ...old, [key]: event.target.value }))} />`)}
          </div>
          <${Trouble} error=${error} />
          <div class="actions"><button type="submit" class="button primary" disabled=${busy || !name.trim() || valid?.valid === false || !may("admin", name.trim())}>Create the queue</button></div>
        <//>
      </div>
      <div>${may("read")
        ? html`<${Preview} text=${text} valid=${valid} start=${start} />`
        : html`<${Panel} title="Preview"><p class="note">A preview of the log needs the grant read:*.</p><//>`}</div>
    </form>`;
}

const indexed = (diagnosis) => {
  if (!diagnosis) return "Empty takes every message.";
  if (!diagnosis.valid) return "";
  return diagnosis.indexed ? "Indexed: most messages need not evaluate it." : "Not indexed: evaluated for every message. An equality such as topic = '…' makes it quicker.";
};

const startOf = ({ kind, value }) => {
  if (kind === "time") return `time:${value ? new Date(value).getTime() : 0}`;
  return kind === "offset" ? `offset:${Number(value) || 0}` : kind;
};

function Start({ start, onChange }) {
  const kinds = [["latest", "now: only messages published from now on"], ["earliest", "the beginning of the log"], ["time", "a time"], ["offset", "an offset"]];
  return html`<fieldset>
    <legend>It starts at</legend>
    ${kinds.map(([kind, label]) => html`<label class="radio" key=${kind}><input type="radio" name="start" value=${kind} checked=${start.kind === kind}
      onChange=${() => onChange({ kind, value: "" })} /> ${label}</label>`)}
    ${start.kind === "time" && html`<${Field} label="Time" type="datetime-local" step="1" required value=${start.value} onInput=${(event) => onChange({ kind: "time", value: event.target.value })} />`}
    ${start.kind === "offset" && html`<${Field} label="Offset" inputmode="numeric" pattern="[0-9]+" required value=${start.value} onInput=${(event) => onChange({ kind: "offset", value: event.target.value })} />`}
  </fieldset>`;
}

/** The headers of the newest messages, for completion. */
async function knownHeaders(signal) {
  const page = await newest(200, signal);
  return [...new Set(page.entries.flatMap((entry) => Object.keys(entry.message.headers ?? {})))];
}

async function newest(entries, signal) {
  const end = await get("/v1/log/end", { signal });
  return get("/v1/log" + query({ from: Math.max(0, end.offset - entries), limit: entries }), { signal });
}

function Preview({ text, valid, start }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  const filter = text.trim() || "TRUE";
  // A diagnosis of what was there before says nothing about this text.
  const ready = !text.trim() || (valid?.text === text && valid.valid);
  useEffect(() => {
    if (!ready) return undefined;
    const stop = new AbortController();
    const look = async (from, whole) => {
      try {
        const preview = await get("/v1/preview" + query({ filter, start: from }), { signal: stop.signal });
        setFound({ ...preview, whole });
        setError(null);
      } catch (problem) {
        if (problem.name !== "AbortError") setError(problem);
      }
    };
    const timers = [
      setTimeout(async () => {
        const end = await get("/v1/log/end", { signal: stop.signal }).catch(() => null);
        if (end && end.offset > NEWEST) look(end.offset - NEWEST, false);
        else if (end) look(0, true);
      }, PAUSE_MS),
      setTimeout(() => look(0, true), WHOLE_PAUSE_MS),
    ];
    return () => {
      timers.forEach(clearTimeout);
      stop.abort();
    };
  }, [filter, ready]);
  const old = useOld(filter, start, ready);
  return html`<${Panel} title="What it takes" class="preview">
    <${Trouble} error=${error} />
    ${found && html`<p class="figure" role="status"><b>${count(found.count)}</b> of ${found.whole ? "" : "the newest "}${plural(found.scanned, "message")} in the log match</p>
      <meter min="0" max=${Math.max(1, found.scanned)} value=${found.count} aria-label="Share that matches"></meter>
      <p class="note">${old}</p>
      ${found.sample.length > 0 && html`<${Table} caption="A sample of what it takes" rows=${found.sample} rowKey=${(entry) => entry.message.offset} columns=${[
        ["Message", (entry) => html`<a href=${link("messages", String(entry.message.id))}>${entry.message.id}</a>`, "number"],
        ["Topic", (entry) => entry.message.topic],
        ["Headers", (entry) => html`<${Headers} of=${entry.message} />`],
      ]} />`}`}
  <//>`;
}

/** How many messages of the past the queue begins with. */
function useOld(filter, start, ready) {
  const from = startOf(start);
  const found = useLoaded(async (signal) => {
    if (!ready || start.kind === "latest") return null;
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    if (signal.aborted) return null;
    return call("PUT", "/v1/queues/preview" + query({ start: from, dry_run: true }), { filter }, { signal });
  }, [filter, from, ready]);
  if (start.kind === "latest") return "It begins empty: these messages show what it would have taken.";
  if (found.error) return found.error.message;
  return found.value ? `It begins with ${plural(found.value.preview.count, "message")} from the log.` : "Counting.";
}
