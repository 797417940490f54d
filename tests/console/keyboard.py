"""A user without a mouse: finds controls by Tab, and presses keys."""

from __future__ import annotations

from playwright.sync_api import Page

#: The name of the focused control, roughly as a screen reader says it.
_FOCUSED = """() => {
  const it = document.activeElement;
  const labels = [...(it.labels ?? [])].map(one => one.innerText).join(" ");
  const label = it.getAttribute("aria-label") || labels;
  return (label || it.innerText || it.value || it.tagName).trim();
}"""
#: More controls than any screen has.
_MOST = 150


class Keyboard:
    def __init__(self, page: Page) -> None:
        self._page = page

    def focused(self) -> str:
        name: str = self._page.evaluate(_FOCUSED)
        return name

    def tab_to(self, name: str) -> None:
        """Press Tab until a control has the focus whose name begins like this."""
        passed = []
        for _ in range(_MOST):
            self._page.keyboard.press("Tab")
            if self.focused().startswith(name):
                assert self._page.evaluate(
                    "() => document.activeElement.matches(':focus-visible')"
                ), f"{name} does not show that it has the focus"
                return
            passed.append(self.focused())
        raise AssertionError(f"Tab never reached {name!r}, only {passed}")

    def press(self, name: str, key: str = "Enter") -> None:
        """Go to a control and press a key there."""
        self.tab_to(name)
        self._page.keyboard.press(key)

    def follow(self, link: str, heading: str | None = None) -> None:
        """Follow a link, and wait for the screen that it opens."""
        self.press(link)
        # Exact: the heading of the screen before may begin alike.
        wanted = self._page.get_by_role("heading", name=heading or link, level=1, exact=True)
        wanted.wait_for()

    def fill(self, name: str, text: str) -> None:
        """Go to an input and replace what is in it."""
        self.tab_to(name)
        self._page.keyboard.press("ControlOrMeta+a")
        self._page.keyboard.type(text)
