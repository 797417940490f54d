// The newest report of the pipeline, in a frame that reaches neither the console nor the network.

import { html, useRef } from "./htm-preact.js";
import { get } from "./api.js";
import { now } from "./live.js";
import { Heading, Panel, Snippet, Trouble, useLoaded } from "./parts.js";
import { ago, time } from "./format.js";

const FRAME = new URL("report_frame.html", import.meta.url).href;

export function Report() {
  const found = useLoaded((signal) => get("/v1/pipeline/report", { signal }), []);
  const report = found.value?.report;
  return html`
    <${Heading} title="Report" note=${report && html`<span title=${time(report.stored_at)}>Made ${ago(report.stored_at, now())}</span>`} />
    <${Trouble} error=${found.error} />
    ${report && html`<${Page} page=${report.page} key=${report.stored_at} />`}
    ${found.value && !report && html`<${Panel} class="teach" title="There is no report yet">
      <p>A job writes it: what changed since yesterday, which queues need attention, and why messages failed.</p>
      <${Snippet} title="Command line" text="penstock pipeline report --output ./report" />
    <//>`}`;
}

function Page({ page }) {
  const frame = useRef();
  const sent = useRef(false);
  const send = () => {
    // Once: the frame is loaded again when the page has taken its place.
    if (sent.current) return;
    sent.current = true;
    // An opaque origin has no name.
    frame.current.contentWindow.postMessage(page, "*");
  };
  const theme = document.documentElement.dataset.theme;
  return html`<iframe class="report" title="Report" ref=${frame} onLoad=${send} sandbox="allow-scripts"
    allow="clipboard-write *" src=${theme ? `${FRAME}#theme=${theme}` : FRAME}></iframe>`;
}
