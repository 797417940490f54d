// Calls to the server. The credential is in memory and in session storage, never in a URL.

import { parseExactly } from "./exact.js";
import { createStore } from "./store.js";

const KEY = "penstock.credential";
/** The page is at …/console/, the API beside it at …/v1/; a proxy may add a prefix to both. */
const BASE = new URL("../", document.baseURI.replace(/[#?].*$/, ""));

let credential = stored();
/** Why the caller has to sign in: null while it need not. */
export const refusal = createStore(null);

/** An answer that is a problem document. */
export class Problem extends Error {
  constructor(document, status) {
    super(document.detail || document.title || `The server answered ${status}.`);
    this.status = status;
    this.title = document.title;
    this.advice = document.advice;
    this.field = document.field;
    this.document = document;
  }
}

/** The server did not answer. */
export class Unreachable extends Error {}

function stored() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

export function setCredential(text) {
  credential = text;
  try {
    if (text === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, text);
  } catch {
    // Storage is refused: it lasts until the page is closed.
  }
}

export const hasCredential = () => credential !== null;

/** The address of a path, for a request or a snippet. */
export const address = (path) => new URL(path.replace(/^\//, ""), BASE).href;
export const server = () => BASE.href.replace(/\/$/, "");

/** A path whose parts are encoded: path`/v1/queues/${name}`. */
export function path(texts, ...values) {
  return texts.reduce((out, text, i) => out + encodeURIComponent(values[i - 1]) + text);
}

/** A query string without the parameters that are null. */
export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

export async function request(method, target, { body, type = "application/json", headers = {}, signal } = {}) {
  const sent = new Headers(headers);
  if (credential !== null) sent.set("Authorization", `Bearer ${credential}`);
  if (body !== undefined || method === "POST") sent.set("Content-Type", type);
  let reply;
  try {
    reply = await fetch(address(target), {
      method, headers: sent, body, signal, cache: "no-store", credentials: "omit", redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unreachable("The server does not answer.");
  }
  if (reply.ok) return reply;
  const document = await reply.json().catch(() => ({}));
  const problem = new Problem(document, reply.status);
  if (reply.status === 401) refusal.set(hasCredential() ? problem.message : "");
  throw problem;
}

/** JSON in, JSON out. */
export async function call(method, target, value, options = {}) {
  const body = value === undefined ? undefined : JSON.stringify(value);
  const reply = await request(method, target, { ...options, body });
  return reply.status === 204 ? null : parseExactly(await reply.text());
}

export const get = (target, options) => call("GET", target, undefined, options);
export const post = (target, value = {}, options) => call("POST", target, value, options);

/** Server-sent events, as [name, data]; read with fetch, since EventSource sends no credential. */
export async function* events(target, signal) {
  const reply = await request("GET", target, { signal });
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const ends = text.lastIndexOf("\n\n");
    if (ends < 0) continue;
    for (const block of text.slice(0, ends).split("\n\n")) yield parse(block);
    text = text.slice(ends + 2);
  }
}

function parse(block) {
  let name = "comment";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event: ")) name = line.slice(7);
    else if (line.startsWith("data: ")) data.push(line.slice(6));
  }
  return [name, data.length ? JSON.parse(data.join("\n")) : null];
}
