// The frame of the page: sign-in, navigation, and the screen for the current address.

import { html, render, useEffect, useState } from "./htm-preact.js";
import { refusal } from "./api.js";
import { caller, identify, may, mayAny, signOut } from "./session.js";
import { live } from "./live.js";
import { link, route } from "./router.js";
import { useStore } from "./store.js";
import { Button, Notice, Question, Trouble } from "./parts.js";
import { SignIn } from "./sign_in.js";
import { Overview } from "./overview.js";

// The overview is drawn before the other screens are loaded.
const Queue = later(() => import("./queue.js"), "Queue");
const DeadLetters = later(() => import("./dead_letters.js"), "DeadLetters");
const Message = later(() => import("./message.js"), "Message");
const Find = later(() => import("./message.js"), "Find");
const NewQueue = later(() => import("./new_queue.js"), "NewQueue");
const Publish = later(() => import("./publish.js"), "Publish");
const Pipeline = later(() => import("./pipeline.js"), "Pipeline");
const Report = later(() => import("./report.js"), "Report");
const Access = later(() => import("./access.js"), "Access");
const About = later(() => import("./about.js"), "About");

/** Each screen: its first part of the address, its name, and who may see it. */
const PLACES = [
  ["", "Overview", () => mayAny("read")],
  ["failures", "Dead letters", () => mayAny("read")],
  ["messages", "Messages", () => may("read")],
  ["publish", "Publish", () => mayAny("publish")],
  ["new", "New queue", () => mayAny("admin")],
  ["pipeline", "Pipeline", () => may("read")],
  ["report", "Report", () => may("read")],
  ["access", "Access", () => true],
  ["about", "About", () => true],
];

/** A component of a module that is loaded when it is first drawn. */
function later(load, name) {
  let found = null;
  return function Later(props) {
    const [error, setError] = useState(null);
    const [ready, setReady] = useState(found !== null);
    useEffect(() => {
      if (ready) return;
      load().then((module) => {
        found = module[name];
        setReady(true);
      }, setError);
    }, []);
    if (ready) return html`<${found} ...${props} />`;
    return error && html`<${Trouble} error=${new Error("This part of the console could not be loaded. If the server was updated, load the page again.")} />`;
  };
}

/** The other screens, so that they open without waiting, and while the server restarts. */
const IDLE_MS = 1_500;
const prefetch = () => ["queue", "dead_letters", "message", "new_queue", "publish", "pipeline", "report", "access", "about"]
  .forEach((name) => import(`./${name}.js`).catch(() => {}));

function Screen({ parts }) {
  const [first, name, tab] = parts;
  switch (first) {
    case undefined: return mayAny("read") ? html`<${Overview} />` : html`<${Publish} />`;
    case "queues": return name ? html`<${Queue} name=${name} tab=${tab ?? ""} key=${name} />` : html`<${Overview} />`;
    case "failures": return html`<${DeadLetters} />`;
    case "messages": return name ? html`<${Message} id=${name} key=${name} />` : html`<${Find} />`;
    case "publish": return html`<${Publish} topic=${name} />`;
    case "new": return html`<${NewQueue} />`;
    case "pipeline": return html`<${Pipeline} id=${name} />`;
    case "report": return html`<${Report} />`;
    case "access": return html`<${Access} />`;
    case "about": return html`<${About} />`;
    default: return html`<h1>There is no such page</h1><p><a href="#/">Overview</a></p>`;
  }
}

const STATES = { open: "Live", connecting: "Connecting", reconnecting: "Reconnecting", none: "No counts" };

function Frame() {
  const where = useStore(route);
  const own = useStore(caller);
  const [open, setOpen] = useState(false);
  useEffect(() => {
    setOpen(false);
    document.querySelector("main").scrollTop = 0;
    scrollTo(0, 0);
  }, [where]);
  const first = where.parts[0] === "queues" ? "" : (where.parts[0] ?? "");
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); document.getElementById("main").focus(); }}>Skip to the content</a>
    <div class=${`frame${open ? " open" : ""}`}>
      <nav aria-label="Main">
        <div class="brand"><a href="#/"><svg viewBox="0 0 32 32" aria-hidden="true"><path d="M4 9h9c6 0 4 14 10 14h5" /></svg>Penstock</a>
          <${Button} kind="quiet menu" aria-expanded=${open ? "true" : "false"} aria-controls="places" onClick=${() => setOpen(!open)}>Menu<//></div>
        <div id="places" class="places">
          <ul>
            ${PLACES.filter(([, , allowed]) => allowed()).map(([key, name]) => html`<li key=${key}>
              <a href=${key ? link(key) : "#/"} aria-current=${key === first ? "page" : undefined}>${name}</a></li>`)}
          </ul>
          <div class="status">
            <${Stream} />
            <span class="note">${own.tenant}${own.auth ? ` · ${own.name || "unnamed"}` : ""}</span>
            <${Theme} />
            ${own.auth && html`<${Button} kind="quiet" onClick=${signOut}>Sign out<//>`}
          </div>
        </div>
      </nav>
      <main id="main" tabindex="-1"><${Screen} parts=${where.parts} /></main>
    </div>
    <${Question} /><${Notice} />`;
}

/** On its own: the frame is not drawn again with every change of a count. */
function Stream() {
  const { state } = useStore(live);
  return html`<span class=${`stream ${state}`} role="status">${STATES[state]}</span>`;
}

function Theme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme ?? "system");
  const choose = (next) => {
    setTheme(next);
    if (next === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = next;
    try {
      localStorage.setItem("penstock.theme", next);
    } catch {
      // Storage is refused: it lasts until the page is closed.
    }
  };
  return html`<label class="theme">Theme <select value=${theme} onChange=${(event) => choose(event.target.value)}>
    ${["system", "light", "dark"].map((one) => html`<option value=${one} selected=${one === theme}>${one}</option>`)}
  </select></label>`;
}

function Console() {
  const own = useStore(caller);
  const reason = useStore(refusal);
  const [error, setError] = useState(null);
  const begin = () => identify().then(() => setError(null), (problem) => problem.status === 401 || setError(problem));
  useEffect(() => {
    begin();
    const timer = setTimeout(prefetch, IDLE_MS);
    return () => clearTimeout(timer);
  }, []);
  useEffect(() => {
    if (!error) return undefined;
    const timer = setTimeout(begin, 2000);
    return () => clearTimeout(timer);
  }, [error]);
  if (own) return html`<${Frame} />`;
  if (reason !== null) return html`<${SignIn} reason=${reason} />`;
  return error ? html`<main class="alone"><${Trouble} error=${error} /></main>` : null;
}

render(html`<${Console} />`, document.getElementById("console"));
