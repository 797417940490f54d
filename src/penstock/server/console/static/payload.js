// A payload as JSON, text or bytes. It is only ever shown as text, never interpreted.

import { html, useState } from "./htm-preact.js";
import { parseExactly } from "./exact.js";
import { Button } from "./parts.js";
import { bytes as size, visible } from "./format.js";

/** Beyond this the page would stall. */
const MOST_SHOWN = 256 * 1024;
const HEX_SHOWN = 16 * 1024;

/** `data` is a Uint8Array; `name` is what it is saved as. */
export function Payload({ data, contentType, name }) {
  const text = decode(data);
  const json = text === null ? null : pretty(text);
  const kinds = [json !== null && "json", text !== null && "text", "hex"].filter(Boolean);
  const [kind, setKind] = useState(null);
  const shown = kinds.includes(kind) ? kind : kinds[0];
  const content = { json, text, hex: null }[shown] ?? hex(data);
  const isCut = shown === "hex" ? data.length > HEX_SHOWN : content.length > MOST_SHOWN;
  return html`<div class="payload">
    <div class="choice" role="group" aria-label="Show the payload as">
      ${kinds.map((one) => html`<button type="button" aria-pressed=${one === shown ? "true" : "false"} onClick=${() => setKind(one)}>${one === "json" ? "JSON" : one}</button>`)}
      <span class="note">${size(data.length)}${contentType ? `, ${visible(contentType)}` : ""}</span>
      <${Button} kind="quiet small" onClick=${() => save(data, name)}>Save<//>
    </div>
    <pre tabindex="0" role="region" aria-label="Payload" class=${shown}>${visible(content.slice(0, MOST_SHOWN))}</pre>
    ${isCut && html`<p class="note">Only the beginning is shown: save it to see all of it.</p>`}
  </div>`;
}

/** As bytes without a type, so that nothing opens it. */
function save(data, name) {
  const address = URL.createObjectURL(new Blob([data], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 60_000);
}

function decode(data) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(data);
  } catch {
    return null;
  }
}

function pretty(text) {
  if (text.length > 2 * MOST_SHOWN || !/^\s*[[{"\dtfn-]/.test(text)) return null;
  try {
    return JSON.stringify(parseExactly(text), null, 2);
  } catch {
    return null;
  }
}

function hex(data) {
  const lines = [];
  for (let at = 0; at < Math.min(data.length, HEX_SHOWN); at += 16) {
    const part = data.subarray(at, at + 16);
    const codes = Array.from(part, (byte) => byte.toString(16).padStart(2, "0"));
    const text = Array.from(part, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(6, "0")}  ${codes.slice(0, 8).join(" ").padEnd(23)}  ${codes.slice(8).join(" ").padEnd(23)}  ${text}`);
  }
  return lines.join("\n");
}

/** The payload of a snapshot, in whichever of the three fields it is, in one line. */
export function preview(item) {
  if ("payload" in item) return JSON.stringify(item.payload).slice(0, 200);
  if ("payload_text" in item) return item.payload_text.slice(0, 200);
  if ("payload_base64" in item) {
    const data = fromBase64(item.payload_base64.slice(0, 400));
    const text = decode(data.subarray(0, 200));
    return text !== null && !/[\x00-\x08]/.test(text) ? text : Array.from(data.subarray(0, 32), (byte) => byte.toString(16).padStart(2, "0")).join(" ");
  }
  return "";
}

/** The payload of a snapshot, as bytes. */
export function payloadBytes(item) {
  if ("payload" in item) return new TextEncoder().encode(JSON.stringify(item.payload));
  if ("payload_text" in item) return new TextEncoder().encode(item.payload_text);
  return "payload_base64" in item ? fromBase64(item.payload_base64) : new Uint8Array();
}

function fromBase64(text) {
  return Uint8Array.from(atob(text.slice(0, text.length - (text.length % 4))), (character) => character.charCodeAt(0));
}
