// The small parts that all screens are made of.

import { html, useEffect, useRef, useState } from "./htm-preact.js";
import { Problem } from "./api.js";
import { createStore, useStore } from "./store.js";
import { headerText, words } from "./format.js";

/** When the page is loaded, the focus stays at its beginning: the skip link comes first. */
let loaded = false;

/** The heading of a screen; the title of the tab follows it, and the focus after a link. */
export function Heading({ title, note, children }) {
  const heading = useRef();
  useEffect(() => {
    document.title = `${title} · Penstock`;
    if (loaded) heading.current.focus({ preventScroll: true });
    loaded = true;
  }, [title]);
  return html`<header class="heading">
    <div>
      <h1 tabindex="-1" ref=${heading}>${title}</h1>
      ${note && html`<p class="note">${note}</p>`}
    </div>
    <div class="actions">${children}</div>
  </header>`;
}

export const Button = ({ kind = "", children, ...rest }) =>
  html`<button type="button" class=${`button ${kind}`} ...${rest}>${children}</button>`;

let ids = 0;
export const useId = () => useState(() => `field-${(ids += 1)}`)[0];

/** A labelled input; children replace the input and get its id. */
export function Field({ label, hint, error, children, class: extra = "", ...input }) {
  const id = useId();
  const describedBy = hint || error ? `${id}-hint` : undefined;
  const control = children
    ? children({ id, "aria-describedby": describedBy, "aria-invalid": error ? "true" : undefined })
    : html`<input id=${id} aria-describedby=${describedBy} aria-invalid=${error ? "true" : undefined} ...${input} />`;
  return html`<div class=${`field ${extra}`}>
    <label for=${id}>${label}</label>
    ${control}
    ${(hint || error) && html`<p id=${describedBy} class=${error ? "hint bad" : "hint"}>${error || hint}</p>`}
  </div>`;
}

export function Select({ label, hint, options, value, onChange, class: extra }) {
  return html`<${Field} label=${label} hint=${hint} class=${extra}>
    ${(own) => html`<select ...${own} value=${value} onChange=${(event) => onChange(event.target.value)}>
      ${options.map(([key, text]) => html`<option value=${key} selected=${key === value}>${text}</option>`)}
    </select>`}
  <//>`;
}

/** An error as the server explains it. */
export function Trouble({ error }) {
  if (!error) return null;
  return html`<div class="trouble" role="alert">
    <strong>${error instanceof Problem ? error.title : "Error"}</strong>
    <span>${error.message}</span>
    ${error.advice && html`<span class="note">${error.advice}</span>`}
  </div>`;
}

export const State = ({ state }) => html`<span class=${`state ${state}`}>${words(state)}</span>`;

/** The headers of a message in a cell: three lines of them at most. */
export const Headers = ({ of }) => html`<span class="code few-lines">${headerText(of.headers)}</span>`;

/** Numbers side by side, each with its name: [name, value, kind, note]. */
export function Ledger({ entries, label }) {
  return html`<dl class="ledger" aria-label=${label}>
    ${entries.map(([name, value, kind = "", note]) => html`<div class=${kind} key=${name}>
      <dt>${name}</dt>
      <dd>${value}${note && html` <small>${note}</small>`}</dd>
    </div>`)}
  </dl>`;
}

/** Names and values below each other. */
export function Facts({ entries }) {
  return html`<dl class="facts">
    ${entries.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value ?? "–"}</dd></div>`)}
  </dl>`;
}

export const Panel = ({ title, children, actions, class: extra = "" }) => html`<section class=${`panel ${extra}`}>
  ${title && html`<header><h2>${title}</h2><div class="actions">${actions}</div></header>`}
  ${children}
</section>`;

/** A table of a few rows: columns are [title, cell(row), kind]. */
export function Table({ columns, rows, caption, rowKey }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table>
      <caption class="hidden">${caption}</caption>
      <thead><tr>${columns.map(([title, , kind = ""]) => html`<th scope="col" class=${kind}>${title}</th>`)}</tr></thead>
      <tbody>
        ${rows.map((row) => html`<tr key=${rowKey?.(row)}>
          ${columns.map(([, cell, kind = ""]) => html`<td class=${kind}>${cell(row)}</td>`)}
        </tr>`)}
      </tbody>
    </table>
  </div>`;
}

/** Text to copy. */
export function Snippet({ title, text }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text).then(() => setDone(true), () => setDone(false));
    setTimeout(() => setDone(false), 2000);
  };
  return html`<figure class="snippet">
    <figcaption>${title} <${Button} kind="quiet small" onClick=${copy} aria-label=${`Copy: ${title}`}>${done ? "Copied" : "Copy"}<//></figcaption>
    <pre tabindex="0" role="region" aria-label=${title}>${text}</pre>
  </figure>`;
}

// -- one question before something is destroyed ---------------------------------------

const question = createStore(null);

/** Ask once; resolves to whether the answer was yes. `details` says what will happen. */
export function ask({ title, details, yes, kind = "danger" }) {
  return new Promise((resolve) => question.set({ title, details, yes, kind, resolve }));
}

export function Question() {
  const asked = useStore(question);
  const dialog = useRef();
  useEffect(() => {
    if (asked) dialog.current.showModal();
  }, [asked]);
  if (!asked) return null;
  const answer = (value) => {
    // Closing gives the focus back to the button that asked; removing does not.
    dialog.current.close();
    question.set(null);
    asked.resolve(value);
  };
  return html`<dialog ref=${dialog} aria-labelledby="question" onCancel=${() => answer(false)}>
    <h2 id="question">${asked.title}</h2>
    <div class="prose">${asked.details}</div>
    <div class="actions">
      <${Button} onClick=${() => answer(false)}>Cancel<//>
      <${Button} kind=${asked.kind} onClick=${() => answer(true)}>${asked.yes}<//>
    </div>
  </dialog>`;
}

// -- what has just been done ---------------------------------------------------------

const notice = createStore(null);

export function say(text) {
  notice.set({ text });
}

export function Notice() {
  const said = useStore(notice);
  useEffect(() => {
    if (!said) return undefined;
    const timer = setTimeout(() => notice.set(null), 6000);
    return () => clearTimeout(timer);
  }, [said]);
  return html`<div class="notice" role="status">${said?.text}</div>`;
}

// -- loading -----------------------------------------------------------------------

/** The result of an asynchronous function, which runs when the inputs change. */
export function useLoaded(load, inputs) {
  const [found, setFound] = useState({ value: null, error: null, loading: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const stop = new AbortController();
    setFound((old) => ({ ...old, loading: true }));
    load(stop.signal).then(
      (value) => !stop.signal.aborted && setFound({ value, error: null, loading: false }),
      (error) => !stop.signal.aborted && setFound((old) => ({ ...old, error, loading: false })),
    );
    return () => stop.abort();
  }, [...inputs, turn]);
  return { ...found, reload: () => setTurn((number) => number + 1) };
}

/** Call a function every so often while the page is visible. */
export function useEvery(ms, run) {
  const latest = useRef(run);
  latest.current = run;
  useEffect(() => {
    const timer = setInterval(() => document.hidden || latest.current(), ms);
    return () => clearInterval(timer);
  }, [ms]);
}

/** Runs an action; says what it did, or shows the error. */
export function useAction() {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const run = async (work) => {
    setBusy(true);
    setError(null);
    try {
      return await work();
    } catch (problem) {
      setError(problem);
      return undefined;
    } finally {
      setBusy(false);
    }
  };
  return { run, busy, error };
}
