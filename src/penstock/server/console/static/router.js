// Where the page is, in the part of the URL behind the #: the server's paths stay the same.

import { createStore } from "./store.js";

function read() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return {
    parts: path.split("/").filter(Boolean).map(decode),
    query: new URLSearchParams(search),
  };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const route = createStore(read());
addEventListener("hashchange", () => route.set(read()));

/** A link: link("queues", name, "messages"). */
export const link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;

export function go(target) {
  location.hash = target.replace(/^#/, "");
}
