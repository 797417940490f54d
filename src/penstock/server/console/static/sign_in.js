// Signing in with an API key or a token.

import { html, useEffect, useState } from "./htm-preact.js";
import { signIn } from "./session.js";
import { Field, Trouble, useAction } from "./parts.js";

export function SignIn({ reason }) {
  const [text, setText] = useState("");
  const { run, busy, error } = useAction();
  useEffect(() => {
    document.title = "Sign in · Penstock";
    document.querySelector("main input").focus();
  }, []);
  const submit = (event) => {
    event.preventDefault();
    run(() => signIn(text.trim()));
  };
  const why = error?.status === 401 ? "The server does not accept this key or token." : reason;
  return html`<main class="alone">
    <form class="sign-in" onSubmit=${submit}>
      <h1>Penstock</h1>
      <${Field} label="API key or token" type="password" autocomplete="off" spellcheck="false" required value=${text}
        onInput=${(event) => setText(event.target.value)} error=${why || ""}
        hint="It stays in this tab until you close it." />
      ${error && error.status !== 401 && html`<${Trouble} error=${error} />`}
      <button type="submit" class="button primary" disabled=${busy || !text.trim()}>Sign in</button>
      <p class="note">On the server's machine, <code>penstock key create --grant 'read:*' --store …</code> makes a key.</p>
    </form>
  </main>`;
}
