"""``python -m tests.console.screenshot``: the picture of the console in README.md.

Serves a store on which producers and workers are busy for some minutes, so that the charts have a
past, and takes a picture of the overview.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

import penstock
from penstock import NewMessage, Ordering, QueueApi
from tests.console.flags import FLAGS
from tests.private_server import binary
from tests.service.serving import Serve

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "console.png"
BUSY_S = 170.0
COUNTRIES = ("DE", "AT", "FR", "IT", "ES")
QUEUES = {
    "billing": "topic = 'orders' AND amount >= 100",
    "germany": "topic = 'orders' AND country = 'DE'",
    "express": "express AND topic LIKE 'ord%'",
    "refunds": "topic = 'refunds'",
    "invoices": "topic = 'orders' AND amount >= 250",
    "audit": "topic IN ('orders', 'refunds')",
}


async def busy(url: str, seconds: float) -> None:
    """Publish, and work with failures; the queue of audits has no worker."""
    dice = random.Random(5)
    async with penstock.connect(url) as q:
        for name, text in QUEUES.items():
            ordering = Ordering.PARTITION if name == "express" else Ordering.NONE
            await q.create_queue(name, text, max_attempts=2, ordering=ordering)
        await q.join("express", "worker-1")
        await q.create_queue("legal", "topic = 'orders' AND amount = 299")
        await q.pause("legal")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            topic = "refunds" if dice.random() < 0.15 else "orders"
            await q.publish_batch(topic, [_message(dice) for _ in range(dice.randrange(10, 60))])
            for name in ("billing", "germany", "express", "refunds", "invoices"):
                await _work(q, name, dice)
            await asyncio.sleep(0.4)


def _message(dice: random.Random) -> NewMessage:
    headers: dict[str, str | int | bool] = {
        "amount": dice.randrange(1, 300),
        "country": dice.choice(COUNTRIES),
        "express": dice.random() < 0.2,
    }
    return NewMessage(b'{"order":7}', headers, partition_key=f"customer-{dice.randrange(9)}")


async def _work(q: QueueApi, name: str, dice: random.Random) -> None:
    if name == "invoices" and dice.random() < 0.5:
        return
    for delivery in await q.claim(name, limit=dice.randrange(12, 60), consumer="worker-1"):
        if name == "billing" and dice.random() < 0.01:
            await q.reject(delivery, f"card {delivery.message.id} declined")
        else:
            await q.ack(delivery)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else BUSY_S
    if len(sys.argv) > 2:
        asyncio.run(busy(sys.argv[2], seconds))
        return
    with tempfile.TemporaryDirectory(prefix="penstock-picture-") as folder:
        serve = Serve(Path(folder))
        try:
            _take(serve, seconds)
        finally:
            serve.end()


def _take(serve: Serve, seconds: float) -> None:
    url = serve().url
    with sync_playwright() as playwright:
        path = binary("chromium", "chromium")
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 1360, "height": 680}, color_scheme="light")
        page.goto(f"{url}/console/")
        # In a process of its own: the browser's driver has the event loop of this one.
        command = [sys.executable, "-m", "tests.console.screenshot", str(seconds), url]
        with subprocess.Popen(command) as working:
            page.wait_for_timeout(1000 * seconds - 10_000)
            page.reload()
            page.wait_for_selector(".virtual .name a")
            page.wait_for_timeout(6_000)
            PICTURE.parent.mkdir(exist_ok=True)
            page.screenshot(path=PICTURE)
            assert working.wait() == 0
        browser.close()


if __name__ == "__main__":
    main()
