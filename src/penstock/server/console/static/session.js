// Who is signed in, and what the credential allows.

import { get, hasCredential, refusal, setCredential } from "./api.js";
import { createStore } from "./store.js";

/** The caller: null until it is known. */
export const caller = createStore(null);

const IMPLIED_BY = {
  publish: ["publish", "admin"],
  read: ["read", "consume", "admin"],
  consume: ["consume", "admin"],
  admin: ["admin"],
};

/** Ask the server who the credential belongs to; throws if it is refused. */
export async function identify() {
  const found = await get("/v1/credential");
  refusal.set(null);
  caller.set(found);
}

export async function signIn(text) {
  setCredential(text);
  try {
    await identify();
  } catch (error) {
    if (error.status === 401) setCredential(null);
    throw error;
  }
}

export function signOut() {
  setCredential(null);
  caller.set(null);
  refusal.set("");
}

// A refused call in the middle of work: the key was revoked, or the token has expired.
refusal.subscribe((reason) => {
  if (reason === null) return;
  if (hasCredential()) setCredential(null);
  caller.set(null);
});

/** Whether a grant covers the action on the name; without a name, on every name. */
export function may(action, name = "*") {
  const found = caller.get();
  if (!found) return false;
  return found.grants.some((grant) => {
    const [of, pattern] = split(grant);
    return IMPLIED_BY[action].includes(of) && matches(pattern, name);
  });
}

/** Whether the action is granted on any name at all. */
export function mayAny(action) {
  const found = caller.get();
  return Boolean(found) && found.grants.some((grant) => IMPLIED_BY[action].includes(split(grant)[0]));
}

function split(grant) {
  const colon = grant.indexOf(":");
  return [grant.slice(0, colon), grant.slice(colon + 1)];
}

function matches(pattern, name) {
  if (pattern === "*") return true;
  if (name === "*") return false;
  const parts = pattern.split("*").map((part) => part.replace(/[.\\^$+?()[\]{}|]/g, "\\$&"));
  return new RegExp(`^${parts.join(".*")}$`).test(name.replace(/\.dlq$/, ""));
}
