// The caller's own grants, and the API keys of the tenant.

import { html, useState } from "./htm-preact.js";
import { call, get, path, post } from "./api.js";
import { now } from "./live.js";
import { caller, may } from "./session.js";
import { useStore } from "./store.js";
import { ask, Button, Facts, Field, Heading, Panel, say, Snippet, Table, Trouble, useAction, useLoaded } from "./parts.js";
import { ago, time } from "./format.js";

export function Access() {
  const own = useStore(caller);
  const keys = useLoaded((signal) => (may("admin") ? get("/v1/keys", { signal }) : Promise.resolve({ keys: [] })), []);
  return html`
    <${Heading} title="Access" />
    ${!own.auth && html`<p class="remark">This server asks for no credential: everyone who can reach it may do everything. Keys take effect with <code>penstock serve --auth</code>.</p>`}
    <div class="two">
      <${Panel} title="You">
        <${Facts} entries=${[["Name", own.name || "unnamed"], ["Tenant", own.tenant], ["Expires", own.expires_at ? time(own.expires_at) : "never"]]} />
        <h3>Grants</h3><ul class="plain code">${own.grants.map((grant) => html`<li>${grant}</li>`)}</ul>
      <//>
      ${may("admin") && html`<${NewKey} onCreated=${keys.reload} />`}
    </div>
    ${may("admin") && html`<${Panel} title="API keys">
      <${Trouble} error=${keys.error} />
      ${keys.value?.keys.length > 0 && html`<${Keys} keys=${keys.value.keys} onRevoked=${keys.reload} />`}
      ${keys.value?.keys.length === 0 && html`<p class="empty">The tenant has no keys.</p>`}
    <//>`}`;
}

function Keys({ keys, onRevoked }) {
  const { run, error } = useAction();
  const revoke = async (key) => {
    const yes = await ask({
      title: `Revoke the key ${key.name || key.id}?`, yes: "Revoke",
      details: html`<p>This server refuses it immediately, and programs that use it stop. It cannot be undone. The key has the grants ${key.grants.join(", ")}.</p>`,
    });
    if (!yes) return;
    await run(async () => {
      await call("DELETE", path`/v1/keys/${key.id}`);
      say(`The key ${key.name || key.id} was revoked.`);
      onRevoked();
    });
  };
  return html`<${Trouble} error=${error} /><${Table} caption="API keys" rows=${keys} rowKey=${(key) => key.id} columns=${[
    ["Name", (key) => key.name || html`<span class="note">unnamed</span>`],
    ["Id", (key) => html`<span class="code">${key.id}</span>`, "wide"],
    ["Grants", (key) => html`<span class="code">${key.grants.join(" ")}</span>`],
    ["Created", (key) => html`<span class="nowrap" title=${time(key.created_at)}>${ago(key.created_at, now())}</span>`, "wide"],
    ["Expires", (key) => (key.expires_at ? time(key.expires_at) : "never"), "wide"],
  ["Action", (key) => html`<${Button} kind="danger small" onClick=${() => revoke(key)} aria-label=${`Revoke ${key.name || key.id}`}>Revoke…<//>`, "number"],
  ]} />`;
}

const DAY_MS = 86_400_000;

function NewKey({ onCreated }) {
  const [name, setName] = useState("");
  const [grants, setGrants] = useState("read:*");
  const [days, setDays] = useState("");
  const [made, setMade] = useState(null);
  const { run, busy, error } = useAction();
  const wrongDays = days.trim() !== "" && !(Number(days) > 0);
  const submit = (event) => {
    event.preventDefault();
    run(async () => {
      const body = { name, grants: grants.split(/[\s,]+/).filter(Boolean) };
      if (days.trim()) body.expires_at = Math.round(now() + Number(days) * DAY_MS);
      setMade(await post("/v1/keys", body));
      onCreated();
    });
  };
  return html`<${Panel} title="New key">
    <form onSubmit=${submit}>
      <${Field} label="Name" value=${name} onInput=${(event) => setName(event.target.value)} placeholder="shop" />
      <${Field} label="Grants" required value=${grants} onInput=${(event) => setGrants(event.target.value)} error=${error?.field === "grants" ? error.message : ""}
        hint="For example publish:orders-* consume:billing. The actions are publish, read, consume and admin." />
      <${Field} label="Expires after, days" inputmode="decimal" value=${days} onInput=${(event) => setDays(event.target.value)} placeholder="never"
        error=${wrongDays ? "A number of days, such as 30; empty is never." : ""} />
      ${error && error.field !== "grants" && html`<${Trouble} error=${error} />`}
      <div class="actions"><button type="submit" class="button primary" disabled=${busy || !grants.trim() || wrongDays}>Create the key</button></div>
    </form>
    ${made && html`<div class="plan" role="status"><p><strong>Copy it now.</strong> It is not shown again.</p><${Snippet} title="Key" text=${made.key} /></div>`}
  <//>`;
}
