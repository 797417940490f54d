"""The console with hostile and huge content, and what happens to a page that stays open."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from penstock.testing.laws import law
from tests.console.conftest import Console
from tests.console.prefix_proxy import behind

LONG = "a" * 128
MARKUP = "<img src=x onerror='document.title=1'><script>document.title=2</script>"
#: Reverses what follows it, so that a payload could look like another.
OVERRIDE = "\u202e"


def reject(console: Console, name: str, *errors: str) -> None:
    claimed = console.call("POST", f"/v1/queues/{name}/claims", {"limit": len(errors)})
    settlements = [
        {"verb": "reject", "receipt": one["receipt"], "error": error}
        for one, error in zip(claimed["deliveries"], errors, strict=True)
    ]
    console.call("POST", f"/v1/queues/{name}/settlements", {"settlements": settlements})


@law("P3")
def test_what_producers_wrote_is_shown_exactly_and_never_interpreted(console: Console) -> None:
    page = console.page
    console.call("PUT", "/v1/queues/jobs", {"filter": "TRUE", "description": MARKUP})
    exact = {"id": 12345678901234567890, "markup": MARKUP}
    console.publish(
        "orders",
        {"payload": exact, "headers": {"amount": 9007199254740993, "note": MARKUP}},
        {"payload_text": f"pay {OVERRIDE}001\u202c\x00\x1b[31m", "headers": {"to": OVERRIDE}},
        {"payload_text": "x" * 1_048_576},
        {"payload_base64": "//79/A=="},
    )
    first = console.first_message()
    console.open("#/queues/jobs/messages")
    expect(page.locator("tbody tr")).to_have_count(4)
    row = page.get_by_role("row", name=re.compile("9007199254740993"))
    expect(row).to_contain_text("12345678901234567890")
    expect(page.locator("tbody")).to_contain_text(
        "pay \u2039U+202E\u203a001\u2039U+202C\u203a\u2400\u241b[31m"
    )
    expect(page.locator("tbody")).to_contain_text("to=\u2039U+202E\u203a")
    console.go(f"#/messages/{first}")
    payload = page.get_by_role("region", name="Payload")
    expect(payload).to_contain_text('"id": 12345678901234567890')
    expect(payload).to_contain_text(MARKUP)
    expect(page.locator(".facts")).to_contain_text("9007199254740993")
    assert page.title() == f"Message {first} · Penstock"
    assert page.locator("main img, main script").count() == 0
    console.go(f"#/messages/{first + 2}")
    expect(page.get_by_text("Only the beginning is shown")).to_be_visible()
    with page.expect_download() as saving:
        page.get_by_role("button", name="Save").press("Enter")
    assert saving.value.path().stat().st_size == 1_048_576
    console.go(f"#/messages/{first + 3}")
    expect(payload).to_contain_text("ff fe fd fc")


def test_long_names_and_a_thousand_kinds_of_error_fit_a_phone(console: Console) -> None:
    page = console.page
    console.call("PUT", f"/v1/queues/{LONG}", {"filter": "TRUE", "max_attempts": 1})
    console.publish("orders", *[{"payload": n} for n in range(600)])
    # Numbers would be one kind.
    letters = str.maketrans("0123456789", "abcdefghij")
    errors = [f"no {n:03}".translate(letters) for n in range(600)]
    reject(console, LONG, *errors)
    page.set_viewport_size({"width": 360, "height": 800})
    for place, ready in {
        "#/": ".virtual .name a",
        "#/failures": ".virtual .name a",
        f"#/queues/{LONG}": ".filter-text",
        f"#/queues/{LONG}/failures": ".group",
    }.items():
        console.open(place)
        page.locator(ready).first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
    expect(page.get_by_role("article")).to_have_count(500)
    expect(page.get_by_text("600 dead letters with more than 500 kinds of error")).to_be_visible()
    expect(page.get_by_text("100 dead letters with rarer errors are not")).to_be_visible()


def test_ages_grow_while_nothing_happens(console: Console) -> None:
    console.publish("orders", {"payload": 1})
    console.open()
    page = console.page
    age = page.get_by_role("row", name=re.compile("^orders")).get_by_role("cell").nth(5)
    expect(age).to_have_text(re.compile("^[1-9]"))
    known = int(age.inner_text().split()[0])
    expect(age).to_have_text(f"{known + 2} s")


def test_a_revoked_key_leads_to_the_sign_in_on_a_screen_that_asks_nothing(
    console: Console,
) -> None:
    key = console.call("POST", "/v1/keys", {"grants": ["read:*"]})
    # The screen of dead letters only shows the stream.
    console.open("#/failures", key["key"])
    expect(console.page.get_by_text("No queue has dead letters")).to_be_visible()
    console.call("DELETE", f"/v1/keys/{key['info']['id']}")
    # The server looks at the credential again before it sends what changed.
    console.publish("orders", {"payload": 1})
    expect(console.page.get_by_label("API key or token")).to_be_visible()
    assert console.page.evaluate("Object.keys(sessionStorage)") == []


def test_any_queue_can_be_asked_why_and_a_wrong_number_is_refused(console: Console) -> None:
    page, keyboard = console.page, console.keyboard
    for number in range(60):
        console.call("PUT", f"/v1/queues/queue-{number:02}", {"filter": f"amount > {number}"})
    console.publish("orders", {"payload": 1, "headers": {"amount": 1}})
    console.open(f"#/messages/{console.first_message()}")
    expect(page.locator(".why")).to_contain_text("A claim could hand it out now")
    keyboard.fill("In queue", "queue-59")
    expect(page.locator(".why")).to_contain_text("It is not in this queue")
    keyboard.fill("In queue", "queue-5999")
    expect(page.get_by_text("There is no such queue")).to_be_visible()

    console.expected.add(400)
    console.open("#/publish/orders")
    keyboard.press("Key, priority, delay and more")
    keyboard.fill("Delay, ms", "10s")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("delay_ms")
    expect(page.get_by_text("Nothing yet")).to_be_visible()
    console.open("#/access")
    keyboard.fill("Expires after, days", "a week")
    expect(page.get_by_text("A number of days")).to_be_visible()
    expect(page.get_by_role("button", name="Create the key")).to_be_disabled()


def test_a_question_gives_the_focus_back(console: Console) -> None:
    console.call("PUT", "/v1/queues/jobs", {"filter": "TRUE"})
    console.open("#/queues/jobs")
    console.keyboard.press("Delete")
    console.page.get_by_role("dialog").wait_for()
    console.keyboard.press("Cancel")
    expect(console.page.get_by_role("button", name="Delete…")).to_be_focused()


def test_the_console_works_behind_a_prefix(console: Console) -> None:
    page, served = console.page, console.server.served
    console.expected.add(401)
    console.publish("orders", {"payload": 1})
    with behind("/team/queues", served.host, served.port) as url:
        page.goto(f"{url}/console")
        assert page.url == f"{url}/console/"
        page.get_by_label("API key or token").fill(console.admin)
        page.keyboard.press("Enter")
        page.get_by_role("link", name="orders").click()
        expect(page.get_by_role("heading", name="Filter and policy")).to_be_visible()
        console.go("#/publish")
        expect(page.get_by_role("region", name="curl")).to_contain_text(f"{url}/v1/topics/")
        assert page.evaluate("performance.getEntriesByType('resource').length") > 10
        addresses = page.evaluate("performance.getEntriesByType('resource').map(one => one.name)")
        assert [one for one in addresses if not one.startswith(url)] == []
        page.goto("about:blank")


def test_other_pages_may_not_frame_the_console(console: Console) -> None:
    page = console.page
    page.goto(f"{console.server.served.url}/healthz")
    console.expected.add(0)
    page.evaluate(
        """url => {
          const frame = document.createElement("iframe");
          frame.src = url;
          document.body.append(frame);
          return new Promise(done => { frame.onload = done; });
        }""",
        console.url,
    )
    assert all("Penstock" not in frame.content() for frame in page.frames[1:])
    console.errors.clear()
