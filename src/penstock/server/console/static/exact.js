// JSON whose numbers JavaScript cannot hold: 64-bit headers, and decimals in payloads.

const DIGITS = /\d{16}|\d\.\d{15}/;

/** Keeps the digits of a number literal, which Number would round. */
class Exact {
  constructor(source) {
    this.source = source;
  }

  valueOf() {
    return Number(this.source);
  }

  toString() {
    return this.source;
  }

  toJSON() {
    return JSON.rawJSON ? JSON.rawJSON(this.source) : Number(this.source);
  }
}

/** JSON.parse, but numbers of many digits keep all of them. */
export function parseExactly(text) {
  return DIGITS.test(text) ? JSON.parse(text, keep) : JSON.parse(text);
}

function keep(_, value, context) {
  if (typeof value !== "number" || context === undefined) return value;
  return digits(context.source) > 15 && String(value) !== context.source ? new Exact(context.source) : value;
}

const digits = (source) => source.replace(/[eE].*$/, "").replace(/\D/g, "").length;
