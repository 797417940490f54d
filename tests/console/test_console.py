"""The console in Chromium: every screen's task by keyboard, access, restarts, accessibility."""

from __future__ import annotations

import re

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from penstock.testing.laws import law
from tests.console.conftest import Console, token

#: A count on the page follows a publish within this time.
COUNT_MS = 2_000
ORDERS = [
    {"payload": {"order": n}, "headers": {"amount": n * 10, "country": "AT" if n % 2 else "DE"}}
    for n in range(20)
]

#: A page that tries to reach what it may not.
REPORT = """<!doctype html><html lang="en"><title>R</title><body><h1>All is well</h1>
<p id="reached"></p><script>
const found = [];
try { sessionStorage.length; found.push("storage"); } catch { found.push("storage refused"); }
fetch("/v1/credential").then(() => found.push("network"), () => found.push("network refused"))
  .then(() => { document.getElementById("reached").textContent = found.join(", "); });
</script></body></html>"""


def queue(console: Console, name: str, filter_: str = "topic = 'orders'", **policy: object) -> None:
    console.call("PUT", f"/v1/queues/{name}", {"filter": filter_, **policy})


def settle(console: Console, name: str, verb: str, error: str | None = None) -> int:
    """Claim everything, and settle it."""
    claimed = console.call("POST", f"/v1/queues/{name}/claims", {"limit": 100})["deliveries"]
    settlements = [{"verb": verb, "receipt": one["receipt"]} for one in claimed]
    for number, one in enumerate(settlements):
        if error:
            one["error"] = error.replace("#", str(number))
    if settlements:
        console.call("POST", f"/v1/queues/{name}/settlements", {"settlements": settlements})
    return len(settlements)


def test_an_empty_store_teaches_and_counts_follow_a_publish(console: Console) -> None:
    page = console.page
    console.open()
    expect(page.get_by_text("There are no queues yet")).to_be_visible()
    for kind in ("curl", "Python", "Command line"):
        expect(page.get_by_role("region", name=kind)).to_contain_text("orders")
    console.publish("orders", {"payload": 1})
    expect(page.get_by_role("link", name="orders")).to_be_visible()
    cell = page.get_by_role("row", name=re.compile("^orders")).get_by_role("cell").nth(1)
    # A busy machine may miss the bound; a console that is too slow misses it every time.
    for number in range(2, 6):
        console.publish("orders", {"payload": 1})
        try:
            expect(cell).to_have_text(str(number), timeout=COUNT_MS)
            break
        except AssertionError:
            continue
    else:
        raise AssertionError("the count never followed a publish in time")


def test_a_queue_is_made_while_its_filter_is_previewed(console: Console) -> None:
    page, keyboard = console.page, console.keyboard
    console.publish("orders", *ORDERS)
    console.open()
    keyboard.follow("New queue")
    keyboard.fill("Name", "large")
    keyboard.fill("Filter", "topic = 'orders' AND amount >> 3")
    expect(page.locator("#filter-wrong mark")).to_have_text(">")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("topic = 'orders' AND am")
    option = page.get_by_role("option", name="amount")
    expect(option).to_be_visible()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.keyboard.type(">= 100")
    expect(page.locator(".figure")).to_have_text("10 of 20 messages in the log match")
    expect(page.get_by_text("It begins empty")).to_be_visible()
    keyboard.tab_to("now")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_text("It begins with 10 messages")).to_be_visible()
    keyboard.press("Create the queue")
    expect(page.get_by_role("heading", name="large", level=1)).to_be_visible()
    expect(page.locator(".ledger .accent dd")).to_have_text("10")


def test_a_message_is_published_found_and_explained(console: Console) -> None:
    page, keyboard = console.page, console.keyboard
    queue(console, "jobs")
    queue(console, "large", "amount >= 100")
    console.open("#/publish")
    keyboard.fill("Topic", "orders")
    keyboard.fill("Payload", '{"order": 7, "by": "Käthe"}')
    keyboard.fill("Name of header 1", "amount")
    keyboard.fill("Value of header 1", "50")
    keyboard.press("Publish")
    expect(page.get_by_text("in 1 queue, fsync")).to_be_visible()
    console.publish("orders", *ORDERS)

    console.open("#/queues/jobs/messages")
    expect(page.locator("tbody tr")).to_have_count(21)
    keyboard.fill("Only messages where", "amount = 50 AND country IS NULL")
    page.keyboard.press("Enter")
    expect(page.locator("tbody tr")).to_have_count(1)
    number = str(console.first_message())
    keyboard.press(number)
    expect(page.get_by_role("heading", name=f"Message {number}")).to_be_visible()
    expect(page.get_by_role("region", name="Payload")).to_contain_text("Käthe")
    keyboard.press("hex", "Space")
    expect(page.get_by_role("region", name="Payload")).to_contain_text("4b c3 a4 74 68 65")
    expect(page.locator(".timeline li")).to_have_count(1)
    expect(page.locator(".why")).to_contain_text("A claim could hand it out now")
    page.get_by_label("In queue").focus()
    page.keyboard.type("large")
    expect(page.locator(".why")).to_contain_text("It is not in this queue")
    expect(page.locator(".why li").first).to_contain_text("amount")


@law("D1")
def test_a_group_of_failures_is_replayed_and_acked(console: Console) -> None:
    page, keyboard = console.page, console.keyboard
    queue(console, "billing", max_attempts=1)
    console.publish("orders", *ORDERS)
    assert settle(console, "billing", "reject", "card # was declined by 'bank #'") == 20
    console.publish("orders", {"payload": 1})
    settle(console, "billing", "reject")
    console.open()
    keyboard.follow("Dead letters")
    keyboard.follow("billing")
    group = page.get_by_role("article", name="card <n> was declined by <text>")
    expect(group.locator("b").first).to_have_text("20")
    expect(page.get_by_role("article")).to_have_count(2)
    keyboard.press("Replay…")
    expect(group.get_by_text("20 dead letters would be available again")).to_be_visible()
    assert console.call("GET", "/v1/queues/billing/stats")["failed"] == 21
    keyboard.press("Replay 20")
    expect(group.get_by_text("20 of 20").first).to_be_visible()
    assert console.call("GET", "/v1/queues/billing/stats")["failed"] == 1
    assert settle(console, "billing", "ack") == 20
    # Both bars are full: what was put back, and what was acked since.
    expect(group.get_by_text("20 of 20")).to_have_count(2)
    keyboard.press("Close")
    expect(page.get_by_role("article")).to_have_count(1)
    keyboard.press("Purge…")
    keyboard.press("Remove")
    expect(page.get_by_text("No dead letters")).to_be_visible()


def test_a_queue_is_paused_changed_purged_and_deleted(console: Console) -> None:
    page, keyboard = console.page, console.keyboard
    queue(console, "jobs", ordering="partition")
    console.publish("orders", *[{**one, "partition_key": "p"} for one in ORDERS])
    console.call("POST", "/v1/queues/jobs/consumers", {"consumer": "anna"})
    console.call("POST", "/v1/queues/jobs/claims", {"consumer": "anna", "lease_ms": 600_000})
    console.open("#/queues/jobs/consumers")
    expect(page.get_by_role("region", name="Partitions")).to_contain_text("anna")
    expect(page.get_by_role("region", name="Deliveries in flight")).to_contain_text("anna")
    console.open("#/queues/jobs")
    keyboard.press("Pause")
    expect(page.locator(".heading .state")).to_have_text("paused")
    keyboard.press("Resume")
    expect(page.locator(".heading .state")).to_have_count(0)
    keyboard.press("Edit policy")
    console.expected.add(400)
    keyboard.fill("Attempts", "0")
    keyboard.press("Save")
    expect(page.get_by_text("max_attempts").first).to_be_visible()
    page.get_by_label("Attempts").focus()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("9")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Save")).to_have_count(0)
    assert console.call("GET", "/v1/queues/jobs")["policy"]["max_attempts"] == 9
    keyboard.fill("Only where", "country = 'AT'")
    keyboard.press("Purge…")
    expect(page.get_by_role("dialog")).to_contain_text("cannot be undone")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert console.call("GET", "/v1/queues/jobs/stats")["available"] == 19
    keyboard.press("Purge…")
    keyboard.press("Purge")
    expect(page.get_by_text("10 deliveries of jobs removed")).to_be_visible()
    keyboard.press("Delete")
    keyboard.press("Delete the queue")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    expect(page.get_by_role("link", name="jobs")).to_have_count(0)


def test_runs_of_the_pipeline(console: Console) -> None:
    page, keyboard = console.page, console.keyboard
    run = {"job": "archive", "state": "running", "started_at": 1_000, "updated_at": 2_000}
    console.call("PUT", "/v1/pipeline/runs/one", {**run, "progress": {"entries": 1234}})
    console.open()
    keyboard.follow("Pipeline")
    keyboard.follow("one")
    expect(page.get_by_text("1,234")).to_be_visible()
    ended = {"state": "failed", "error": "the executor was lost", "finished_at": 3_000}
    console.call("PUT", "/v1/pipeline/runs/one", {**run, **ended})
    expect(page.get_by_text("the executor was lost")).to_be_visible()


@law("T1")
def test_signing_in_and_what_a_credential_may_not_do(console: Console) -> None:
    page, keyboard = console.page, console.keyboard
    console.expected = {401, 403}
    queue(console, "jobs")
    console.publish("orders", *ORDERS)
    page.goto(console.url)
    expect(page.get_by_role("heading", name="Penstock")).to_be_visible()
    for wrong in ("psk_" + "a" * 16 + "_" + "b" * 43, token("x", "admin:*", expires_s=-60)):
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.type(wrong)
        page.keyboard.press("Enter")
        expect(page.get_by_text("does not accept")).to_be_visible()
        page.get_by_label("API key or token").focus()

    grants = {"grants": ["consume:jobs"], "name": "worker"}
    key = console.call("POST", "/v1/keys", grants)
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type(key["key"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("link", name="jobs")).to_be_visible()
    assert key["key"] not in page.url
    for hidden in ("Publish", "New queue", "Pipeline", "Messages"):
        expect(page.get_by_role("link", name=hidden)).to_have_count(0)
    console.go("#/queues/jobs")
    expect(page.get_by_role("heading", name="Filter and policy")).to_be_visible()
    for hidden in ("Pause", "Edit policy", "Delete", "Purge…"):
        expect(page.get_by_role("button", name=hidden)).to_have_count(0)
    console.go("#/access")
    expect(page.get_by_text("consume:jobs")).to_be_visible()
    expect(page.get_by_role("heading", name="New key")).to_have_count(0)

    console.call("DELETE", f"/v1/keys/{key['info']['id']}")
    console.go("#/queues/jobs/messages")
    expect(page.get_by_label("API key or token")).to_be_visible()

    console.open(credential=token("another", "admin:*"))
    expect(page.get_by_text("There are no queues yet")).to_be_visible()
    console.open("#/access")
    keyboard.fill("Name", "shop")
    keyboard.fill("Grants", "publish:orders-*")
    keyboard.press("Create the key")
    expect(page.get_by_role("region", name="Key", exact=True)).to_contain_text("psk_")
    keyboard.press("Revoke shop")
    keyboard.press("Revoke")
    expect(page.get_by_text("The tenant has no keys")).to_be_visible()


def test_the_page_survives_a_restart_of_the_server_and_charts_keep_their_past(
    restartable: Console,
) -> None:
    console, page = restartable, restartable.page
    queue(console, "jobs")
    console.open()
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    console.publish("orders", *ORDERS)
    cell = page.get_by_role("row", name=re.compile("^jobs")).get_by_role("cell").nth(1)
    expect(cell).to_have_text("20")
    before = console.call("GET", "/v1/stats/history?queue=jobs")["samples"]
    assert sum(sample[6] for sample in before) == 20
    console.expected.add(0)
    console.server.restart()
    console.publish("orders", {"payload": 1})
    expect(cell).to_have_text("21")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    after = console.call("GET", "/v1/stats/history?queue=jobs")["samples"]
    assert after[: len(before) - 1] == before[:-1]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_keeps_anyone_out(console: Console, theme: str) -> None:
    """No violation that axe can find, on any screen, and nothing wider than a small phone."""
    page = console.page
    queue(console, "billing", max_attempts=1)
    queue(console, "ordered", ordering="partition")
    console.publish("orders", *ORDERS)
    settle(console, "billing", "reject", "card # was declined")
    console.publish("orders", *ORDERS)
    run = {"job": "archive", "state": "running", "started_at": 1_000, "updated_at": 2_000}
    console.call("PUT", "/v1/pipeline/runs/one", run)
    console.call("PUT", "/v1/pipeline/report", {"page": "<h1>All is well</h1>"})
    page.emulate_media(color_scheme="light" if theme == "dark" else "dark")
    console.open()
    page.get_by_label("Theme").select_option(theme)
    axe = Axe()
    # The themes differ in colours only.
    options = {"runOnly": ["color-contrast"]} if theme == "dark" else {}
    found = []
    for place, ready in PLACES.items():
        console.go(place.replace("ID", str(console.first_message())))
        page.locator(ready).first.wait_for()
        violations = axe.run(page, options=options).response["violations"]
        found += [(place, one["id"], one["nodes"][0]["html"]) for one in violations]
        page.set_viewport_size({"width": 360, "height": 800})
        if page.evaluate("() => document.documentElement.scrollWidth > innerWidth"):
            found.append((place, "wider than 360 px", ""))
        page.set_viewport_size({"width": 1280, "height": 800})
    assert found == []


#: Every screen, and what is there when it is complete.
PLACES = {
    "#/": ".virtual .name a",
    "#/queues/billing": ".filter-text",
    "#/queues/billing/messages": "tbody td",
    "#/queues/billing/failures": ".group",
    "#/queues/ordered/consumers": "tbody td",
    "#/failures": ".virtual .name a",
    "#/messages": "tbody td",
    "#/messages/ID": ".timeline",
    "#/new": ".figure",
    "#/publish": "textarea",
    "#/pipeline": "tbody td",
    "#/pipeline/one": ".facts",
    "#/report": "iframe",
    "#/access": "form",
    "#/about": ".facts",
}


def test_the_skip_link_and_a_thousand_rows_by_keyboard(console: Console) -> None:
    page, keyboard = console.page, console.keyboard
    for number in range(60):
        queue(console, f"queue-{number:02}", "FALSE")
    console.open()
    expect(page.get_by_role("link", name="queue-00")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("queue-1")
    expect(page.get_by_role("table")).to_have_attribute("aria-rowcount", "11")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.press("Delete")
    expect(page.get_by_role("table")).to_have_attribute("aria-rowcount", "61")
    keyboard.tab_to("queue-00")
    page.keyboard.press("End")
    page.wait_for_function("() => document.activeElement.innerText === 'queue-59'")
    page.keyboard.press("ArrowUp")
    page.wait_for_function("() => document.activeElement.innerText === 'queue-58'")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="queue-58")).to_be_focused()
    page.reload()
    expect(page.get_by_role("heading", name="queue-58")).to_be_visible()
    page.keyboard.press("Tab")
    assert keyboard.focused() == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("() => document.activeElement.id") == "main"


def test_the_newest_report_is_shown_and_reaches_nothing(console: Console) -> None:
    page = console.page
    console.open("#/report")
    expect(page.get_by_text("There is no report yet")).to_be_visible()
    console.call("PUT", "/v1/pipeline/report", {"page": REPORT})
    page.reload()
    frame = page.frame_locator("iframe[title=Report]")
    expect(frame.get_by_role("heading", name="All is well")).to_be_visible()
    # Its script runs, but neither the console's credential nor the network is there for it.
    expect(frame.locator("#reached")).to_have_text("storage refused, network refused")
    expect(page.locator("header.heading .note")).to_have_text(re.compile("^Made .* ago$"))
    # A refusal of the policy is an error of the page's own.
    console.errors[:] = [one for one in console.errors if "Content Security Policy" not in one]


@law("T1")
def test_a_report_needs_a_grant_on_everything(console: Console) -> None:
    console.call("PUT", "/v1/pipeline/report", {"page": REPORT})
    console.open("#/", credential=token(console.tenant, "read:billing"))
    expect(console.page.get_by_role("link", name="Overview")).to_be_visible()
    expect(console.page.get_by_role("link", name="Report")).to_have_count(0)
    console.expected.add(403)
    console.go("#/report")
    expect(console.page.get_by_role("alert")).to_contain_text("read:*")
    console.open("#/report", credential=token(f"{console.tenant}-other", "admin:*"))
    expect(console.page.get_by_text("There is no report yet")).to_be_visible()
