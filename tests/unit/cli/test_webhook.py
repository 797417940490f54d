"""``penstock webhook``, on a store."""

from __future__ import annotations

from penstock.cli.exits import Exit
from tests.unit.cli.conftest import Shell

URL = "https://example.com/hook"


def test_webhooks_are_added_listed_shown_and_removed(orders: Shell) -> None:
    sh = orders
    sh("queue", "create", "billing", "--filter", "topic = 'bills'")
    added = sh.json(
        *("webhook", "add", "ops", URL, "--queue", "billing", "--event", "message.failed"),
        *("--event", "queue.depth", "--threshold", "10", "--header", "Authorization=Bearer a=b"),
        *("--description", "alerts"),
    )
    assert added["secret"].startswith("whsec_")
    assert added["webhook"]["headers"] == {"Authorization": "***"}
    (listed,) = sh.json("webhook", "list")
    assert listed == added["webhook"] == sh.json("webhook", "show", "ops")
    assert (listed["events"], listed["threshold"]) == (["message.failed", "queue.depth"], 10)
    assert sh.json("queue", "show", "billing")["policy"]["events"] == ["failed"]
    shown = sh("webhook", "add", "ops", URL, "--queue", "billing", "--event", "message.done")
    assert "unchanged" in shown.stdout
    assert "ops" in sh("webhook", "list").stdout
    # No server runs, so the event waits.
    sent = sh("webhook", "test", "ops", "--wait", "0s", code=Exit.CONFLICT)
    assert "pending" in sent.stdout
    assert "webhook" not in sh("export").stdout, "a file of queues has none of webhooks"
    sh("webhook", "remove", "ops")
    sh("webhook", "show", "ops", code=Exit.NOT_FOUND)
    assert sh.json("webhook", "list") == []


def test_what_is_wrong_is_refused(sh: Shell) -> None:
    sh("queue", "create", "billing")
    given = ("webhook", "add", "ops", URL, "--queue", "billing")
    sh(*given, "--event", "message.lost", code=Exit.USAGE)
    sh(*given, "--event", "message.done", "--header", "x", code=Exit.BAD_INPUT)
    refused = sh(*given, "--event", "message.done", "--threshold", "5", code=Exit.BAD_INPUT)
    assert "threshold" in refused.stderr
    sh("queue", "create", "penstock.mine", code=Exit.BAD_INPUT)
