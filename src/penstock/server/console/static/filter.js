// An input for filters: completion, and the place of an error.

import { html, useEffect, useRef, useState } from "./htm-preact.js";
import { post } from "./api.js";

const PAUSE_MS = 150;

/** Calls onChange(text) while typing and onChecked(diagnosis) when the server has looked at it. */
export function FilterInput({ id, label, value, onChange, onChecked, headers = [], placeholder, onEnter }) {
  const input = useRef();
  const [found, setFound] = useState(null);
  const [wrong, setWrong] = useState(null);
  const [chosen, setChosen] = useState(0);
  const typed = useRef(false);

  useEffect(() => {
    const stop = new AbortController();
    const timer = setTimeout(async () => {
      try {
        if (!value.trim()) {
          setWrong(null);
          onChecked?.(null);
        } else {
          const diagnosis = await post("/v1/filters/validate", { text: value }, { signal: stop.signal });
          setWrong(diagnosis.valid ? null : diagnosis);
          onChecked?.({ ...diagnosis, text: value });
        }
        if (!typed.current) return;
        const cursor = [...value.slice(0, input.current.selectionStart)].length;
        const completions = await post("/v1/filters/complete", { text: value, cursor, headers }, { signal: stop.signal });
        setFound(completions.items.length ? completions : null);
        setChosen(0);
      } catch {
        // Too quick a typist, or no server: the next change asks again.
      }
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [value]);

  const complete = (item) => {
    const characters = [...value];
    const text = `${characters.slice(0, found.start).join("")}${item.text}`;
    // At once, so that what is typed next follows it.
    input.current.value = `${text} ${characters.slice(found.end).join("").trimStart()}`;
    input.current.focus();
    input.current.setSelectionRange(text.length + 1, text.length + 1);
    onChange(input.current.value);
    setFound(null);
  };
  const keys = (event) => {
    if (event.key === "Enter" && !(found && chosen > 0)) {
      event.preventDefault();
      setFound(null);
      onEnter?.();
      return;
    }
    if (!found) return;
    const last = found.items.length;
    if (event.key === "ArrowDown") setChosen((chosen % last) + 1);
    else if (event.key === "ArrowUp") setChosen(chosen > 1 ? chosen - 1 : last);
    else if (event.key === "Escape") setFound(null);
    else if (event.key === "Enter") complete(found.items[chosen - 1]);
    else return;
    event.preventDefault();
  };
  const characters = [...value];
  return html`<div class="filter">
    <div class="filter-box">
      <input id=${id} ref=${input} class="code" type="text" role="combobox" autocomplete="off" autocapitalize="off" spellcheck="false"
        aria-label=${label} aria-expanded=${found ? "true" : "false"} aria-controls=${`${id}-list`} aria-autocomplete="list"
        aria-invalid=${wrong ? "true" : undefined} aria-describedby=${`${id}-wrong`}
        aria-activedescendant=${found && chosen ? `${id}-${chosen}` : undefined}
        placeholder=${placeholder} value=${value}
        onInput=${(event) => { typed.current = true; onChange(event.target.value); }} onKeyDown=${keys} onBlur=${() => setTimeout(() => setFound(null), 150)} />
      <ul id=${`${id}-list`} role="listbox" aria-label="Completions" hidden=${!found}>
        ${found?.items.slice(0, 12).map((item, i) => html`<li id=${`${id}-${i + 1}`} role="option" aria-selected=${chosen === i + 1 ? "true" : "false"}
          onMouseDown=${(event) => { event.preventDefault(); complete(item); }}>
          <span class="code">${item.text}</span><small>${item.kind}</small></li>`)}
      </ul>
    </div>
    <p id=${`${id}-wrong`} class="hint bad" role="status">${wrong && html`
      <span class="code" aria-hidden="true">${characters.slice(0, wrong.position).join("")}<mark>${characters.slice(wrong.position, wrong.end).join("") || "␣"}</mark></span>
      ${wrong.message}`}</p>
  </div>`;
}
