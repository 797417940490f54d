"""Actors of dramatiq on Penstock. With a server (`make run`) and a worker

    dramatiq dramatiq_app

running, `python dramatiq_app.py` sends a message and prints its result.
"""

import os

import dramatiq
from dramatiq.results import Results

from penstock.integrations.dramatiq import PenstockBroker, PenstockResults

broker = PenstockBroker(os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8080"))
broker.add_middleware(Results(backend=PenstockResults(broker)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True, max_retries=3)
def add(left: int, right: int) -> int:
    return left + right


if __name__ == "__main__":
    message = add.send(2, 3)
    print("2 + 3 =", message.get_result(block=True, timeout=30_000))
    broker.close()
