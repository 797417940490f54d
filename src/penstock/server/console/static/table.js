// A table of any number of rows, of which only the visible ones are drawn.

import { Component, html, useEffect, useLayoutEffect, useRef, useState } from "./htm-preact.js";

const ROW_PX = 34;
/** Rows beyond the visible ones, so that scrolling shows no gap. */
const MARGIN = 8;

/**
 * `columns`: { key, title, cell(row), kind, sort(row) }; `kind` is a class, such as "number wide".
 * `turn`: all visible rows are drawn again when it changes, as ages do.
 * Arrow keys, Page Up and Down, Home and End move through the links of the rows.
 */
export function VirtualTable({ columns, rows, turn, label, order, onOrder, rowKey, rowKind }) {
  const box = useRef();
  const [view, setView] = useState({ first: 0, count: 40 });
  const wanted = useRef(null);
  const slots = useRef(new Map());

  const look = () => {
    const first = Math.max(0, Math.floor(box.current.scrollTop / ROW_PX) - MARGIN);
    const visible = Math.ceil(box.current.clientHeight / ROW_PX) + 2 * MARGIN;
    setView((old) => (old.first === first && old.count === visible ? old : { first, count: visible }));
  };
  useEffect(() => {
    look();
    const watch = new ResizeObserver(look);
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);

  useLayoutEffect(() => {
    if (wanted.current === null) return;
    const link = box.current.querySelector(`[data-row="${wanted.current}"] a`);
    if (link) {
      wanted.current = null;
      link.focus({ preventScroll: true });
    }
  });

  const move = (event) => {
    const row = event.target.closest("[data-row]");
    const page = Math.max(1, Math.floor(box.current.clientHeight / ROW_PX) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -rows.length, End: rows.length };
    if (!(event.key in steps) || !rows.length) return;
    event.preventDefault();
    const from = row ? Number(row.dataset.row) : -1;
    const to = Math.min(rows.length - 1, Math.max(0, from + steps[event.key]));
    wanted.current = to;
    const top = to * ROW_PX;
    const head = ROW_PX;
    if (top < box.current.scrollTop) box.current.scrollTop = top;
    else if (top + ROW_PX > box.current.scrollTop + box.current.clientHeight - head) {
      box.current.scrollTop = top + ROW_PX + head - box.current.clientHeight;
    }
    look();
    setView((old) => ({ ...old }));
  };

  const shown = rows.slice(view.first, view.first + view.count);
  const keys = assign(slots.current, shown.map(rowKey), focused(box.current));
  return html`<div class=${`virtual${columns.length < 5 ? " few" : ""}`} ref=${box} role="table" aria-label=${label} aria-rowcount=${rows.length + 1}
      style=${{ height: `min(70vh, ${Math.max(2, rows.length + 1) * ROW_PX + 3}px)` }} tabindex="0" onScroll=${look} onKeyDown=${move}>
    <div role="rowgroup" class="head">
      <div role="row" aria-rowindex="1">
        ${columns.map((column) => html`<${Title} column=${column} order=${order} onOrder=${onOrder} key=${column.key} />`)}
      </div>
    </div>
    <div role="rowgroup" class="body" style=${{ height: `${rows.length * ROW_PX}px` }}>
      ${shown.map((row, i) => html`<${Line} key=${keys[i]} row=${row} number=${view.first + i} slot=${keys[i]} columns=${columns} turn=${turn} kind=${rowKind?.(row) ?? ""} />`)}
    </div>
  </div>`;
}

/** The slot of the row that has the focus. */
const focused = (box) => Number(box?.contains(document.activeElement) ? (document.activeElement.closest("[data-slot]")?.dataset.slot ?? -1) : -1);

/** A row. Scrolling draws only those that are new. */
class Line extends Component {
  shouldComponentUpdate(next) {
    const { row, number, columns, turn } = this.props;
    return next.row !== row || next.number !== number || next.columns !== columns || next.turn !== turn;
  }

  render({ row, number, slot, columns, kind }) {
    return html`<div role="row" class=${kind} data-row=${number} data-slot=${slot} aria-rowindex=${number + 2} style=${{ transform: `translateY(${number * ROW_PX}px)` }}>
      ${columns.map((column) => html`<div role="cell" class=${column.kind ?? ""}>${column.cell(row)}</div>`)}
    </div>`;
  }
}

/**
 * The elements that rows are drawn in, by the rows' keys. A row that stays in view keeps its
 * element; a new one gets that of a row that has left, which takes half the processor time. The
 * element with the focus is given to no other row: Enter would open another queue than the one
 * that was chosen.
 */
function assign(slots, keys, kept) {
  const wanted = new Set(keys);
  const free = [];
  for (const [key, slot] of slots) {
    if (wanted.has(key)) continue;
    slots.delete(key);
    if (slot !== kept) free.push(slot);
  }
  let next = Math.max(-1, ...slots.values(), ...free, kept) + 1;
  return keys.map((key) => {
    if (!slots.has(key)) slots.set(key, free.length ? free.shift() : next++);
    return slots.get(key);
  });
}

function Title({ column, order, onOrder }) {
  const own = order?.key === column.key;
  const sort = own ? (order.down ? "descending" : "ascending") : "none";
  if (!column.sort) return html`<div role="columnheader" class=${column.kind ?? ""}>${column.title}</div>`;
  return html`<div role="columnheader" class=${column.kind ?? ""} aria-sort=${sort}>
    <button type="button" onClick=${() => onOrder({ key: column.key, down: own ? !order.down : true })}>
      ${column.title}<span aria-hidden="true">${own ? (order.down ? " ↓" : " ↑") : ""}</span>
    </button>
  </div>`;
}

/** The rows in the order of a column. */
export function sorted(rows, columns, order) {
  const column = columns.find((one) => one.key === order?.key);
  if (!column?.sort) return rows;
  const sign = order.down ? -1 : 1;
  const keyed = rows.map((row) => [column.sort(row), row]);
  keyed.sort(([a, x], [b, y]) => (a < b ? -sign : a > b ? sign : x.queue < y.queue ? -1 : 1));
  return keyed.map(([, row]) => row);
}
