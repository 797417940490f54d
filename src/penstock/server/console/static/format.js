// Numbers, times and sizes as people read them.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const oneDigit = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(undefined, {
  year: "numeric", month: "2-digit", day: "2-digit",
  hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false,
});

export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

/** Counts beyond a million, shortened. */
export function short(value) {
  if (value < 1e6) return whole.format(value);
  return value < 1e9 ? `${oneDigit.format(value / 1e6)} M` : `${oneDigit.format(value / 1e9)} G`;
}

export const rate = (value) => (value >= 100 ? whole.format(value) : oneDigit.format(value));

/** A duration in milliseconds, in its two largest units. */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.max(0, Math.round(ms))} ms`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => seconds >= size);
  const [name, size] = units[first];
  const rest = units[first + 1];
  const more = rest ? Math.floor((seconds % size) / rest[1]) : 0;
  return `${Math.floor(seconds / size)} ${name}${more ? ` ${more} ${rest[0]}` : ""}`;
}

/** A duration in one unit, for where it changes while it is read. */
export function age(ms) {
  const seconds = Math.max(0, Math.floor(ms / 1000));
  if (seconds < 100) return `${seconds} s`;
  if (seconds < 6000) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86_400)} d`;
}

export const time = (ms) => (ms === null || ms === undefined ? "–" : clock.format(ms));

export const ago = (ms, now) => (ms === null || ms === undefined ? "–" : `${age(now - ms)} ago`);

export function bytes(size) {
  if (size < 1024) return `${size} B`;
  const kib = size / 1024;
  return kib < 1024 ? `${oneDigit.format(kib)} KiB` : `${oneDigit.format(kib / 1024)} MiB`;
}

export const plural = (number, noun, many = `${noun}s`) =>
  `${count(number)} ${number === 1 ? noun : many}`;

/** A typed number; other text stays text, which the server refuses with the reason. */
export const numeric = (text) => (Number.isFinite(Number(text)) ? Number(text) : text.trim());

/** A state as words: in_flight is "in flight". */
export const words = (text) => text.replaceAll("_", " ");

/** C0 and C1 controls but newline and tab, and what changes the direction or the place of other text. */
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]/;

/** Text that strangers wrote: characters that show nothing, or reorder what is beside them, are named. */
export function visible(text) {
  return text.replaceAll("\r\n", "\n").replace(UNSEEN, (character) => {
    const code = character.charCodeAt(0);
    return code < 32 ? String.fromCharCode(0x2400 + code) : `‹U+${code.toString(16).toUpperCase().padStart(4, "0")}›`;
  });
}

/** Headers in one line. */
export const headerText = (headers) =>
  Object.entries(headers ?? {}).map(([name, value]) => `${visible(name)}=${isolated(visible(String(value)))}`).join("  ");

/** Text from right to left would pull its neighbours along. */
const isolated = (text) => (RIGHT_TO_LEFT.test(text) ? `\u2068${text}\u2069` : text);
