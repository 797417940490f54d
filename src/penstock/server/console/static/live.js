// The live counts of all queues: one stream for the page, and what is derived from it.

import { events, Problem, refusal } from "./api.js";
import { createStore } from "./store.js";
import { caller, mayAny } from "./session.js";

/** A stream that has been silent for longer is broken: the server comments every ten seconds. */
const SILENT_MS = 25_000;
const FIRST_PAUSE_MS = 500;
const LONGEST_PAUSE_MS = 5_000;
/** The least time between two drawings of thousands of rows. The first is immediate. */
const DRAW_MS = 250;
/** Without any event, ages grow and a queue without consumers comes to need attention. */
const AGE_MS = 1_000;

const queues = new Map();
/** Replaced to draw the screen again; `version` changes only when a queue did. */
export const live = createStore({ queues, state: "connecting", version: 0 });

let offset = 0;
/** The server's time. */
export const now = () => Date.now() + offset;

let columns = [];
let stop = null;
let drawing = 0;
let drawn = 0;

function changed(state) {
  const draw = () => {
    drawing = 0;
    drawn = performance.now();
    const before = live.get();
    live.set({ ...before, state: state ?? before.state, version: before.version + 1 });
  };
  const wait = drawn + DRAW_MS - performance.now();
  if (state || wait <= 0) {
    clearTimeout(drawing);
    draw();
  } else if (!drawing) drawing = setTimeout(draw, wait);
}

function take([name, data]) {
  if (name === "begin") columns = data.columns;
  else if (name === "problem") throw new Problem(data, data.status);
  else if (name === "queues") {
    offset = data.at - Date.now();
    if (data.reset) queues.clear();
    for (const row of data.rows) {
      const queue = {};
      for (let i = 0; i < columns.length; i += 1) queue[columns[i]] = row[i];
      queues.set(queue.queue, queue);
    }
    for (const removed of data.removed) queues.delete(removed);
    if (data.complete && live.get().state !== "open") changed("open");
    else changed();
  }
}

async function follow(signal) {
  let pause = FIRST_PAUSE_MS;
  while (!signal.aborted) {
    const attempt = new AbortController();
    const abort = () => attempt.abort();
    signal.addEventListener("abort", abort);
    let watch = setTimeout(abort, SILENT_MS);
    try {
      for await (const event of events("/v1/stats/stream", attempt.signal)) {
        clearTimeout(watch);
        watch = setTimeout(abort, SILENT_MS);
        take(event);
        pause = FIRST_PAUSE_MS;
      }
    } catch (error) {
      if (error.status === 401) {
        // The key was revoked or the token expired while the stream was open.
        refusal.set(error.message);
        return;
      }
      if (error.status === 403) {
        changed("none");
        return;
      }
    } finally {
      clearTimeout(watch);
      signal.removeEventListener("abort", abort);
    }
    if (signal.aborted) return;
    changed("reconnecting");
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(LONGEST_PAUSE_MS, pause * 2);
  }
}

setInterval(() => {
  if (!document.hidden && live.get().state === "open") live.set({ ...live.get() });
}, AGE_MS);

caller.subscribe((found) => {
  stop?.abort();
  stop = null;
  queues.clear();
  changed("connecting");
  if (found && mayAny("read")) {
    stop = new AbortController();
    follow(stop.signal);
  } else if (found) changed("none");
});

/** The sums over all queues. */
export function totals(all) {
  const sum = { queues: 0, delayed: 0, available: 0, in_flight: 0, failed: 0, entered: 0, acked: 0, failing: 0, oldest_at: null };
  for (const queue of all.values()) {
    sum.queues += 1;
    sum.delayed += queue.delayed;
    sum.available += queue.available;
    sum.in_flight += queue.in_flight;
    sum.failed += queue.failed;
    sum.entered += queue.entered_per_s;
    sum.acked += queue.acked_per_s;
    sum.failing += queue.failed_per_s;
    if (queue.oldest_at !== null && (sum.oldest_at === null || queue.oldest_at < sum.oldest_at)) sum.oldest_at = queue.oldest_at;
  }
  return sum;
}

const STUCK_MS = 60_000;

/** What an operator should know about a queue: [severity, text]; null if it is well. */
export function attention(queue, at) {
  const age = queue.oldest_at === null ? 0 : at - queue.oldest_at;
  if (queue.failed_per_s > 0) return [4, `failing, ${queue.failed_per_s} per second`];
  if (queue.paused && queue.available) return [3, "paused, messages wait"];
  if (queue.available && !queue.in_flight && !queue.claimed_per_s && age > STUCK_MS) return [3, "no consumer claims"];
  if (age > STUCK_MS && queue.entered_per_s > queue.acked_per_s) return [2, "consumers fall behind"];
  if (queue.failed) return [1, "has dead letters"];
  if (queue.paused) return [1, "paused"];
  if (queue.behind) return [1, "catching up with the log"];
  return null;
}
