// A store without queues shows how to publish the first message, and notices when it arrives.

import { html } from "./htm-preact.js";
import { server } from "./api.js";
import { caller, mayAny } from "./session.js";
import { Panel, Snippet } from "./parts.js";

/** The same message in curl, Python and the command line. */
export function snippets(topic, headers = { amount: 250 }) {
  const auth = caller.get().auth;
  const given = JSON.stringify(headers);
  const python = Object.entries(headers).map(([name, value]) => `"${name}": ${JSON.stringify(value)}`).join(", ");
  const flags = Object.entries(headers).map(([name, value]) => ` --header ${name}=${value}`).join("");
  return [
    ["curl", `curl -sS ${server()}/v1/topics/${topic}/messages \\\n${auth ? '  -H "Authorization: Bearer $PENSTOCK_CREDENTIAL" \\\n' : ""}  -H 'Content-Type: application/json' \\\n  -H 'Penstock-Headers: ${given}' \\\n  -d '{"order": 7}'`],
    ["Python", `import asyncio, ${auth ? "os, " : ""}penstock\n\nasync def main():\n    async with penstock.connect("${server()}"${auth ? ', credential=os.environ["PENSTOCK_CREDENTIAL"]' : ""}) as q:\n        await q.publish("${topic}", {"order": 7}, headers={${python}})\n\nasyncio.run(main())`],
    ["Command line", `penstock publish ${topic} '{"order": 7}'${flags} --url ${server()}`],
  ];
}

export function FirstMessage() {
  return html`<${Panel} class="teach" title="There are no queues yet">
    <p>Publish a message, and Penstock creates a queue named after its topic. This page shows it as soon as it arrives.</p>
    ${mayAny("admin") && html`<p>Or <a href="#/new">create a queue</a> with a filter of your own first.</p>`}
    <div class="snippets">${snippets("orders").map(([title, text]) => html`<${Snippet} title=${title} text=${text} key=${title} />`)}</div>
    <p class="waiting" role="status">Waiting for the first message</p>
  <//>`;
}
