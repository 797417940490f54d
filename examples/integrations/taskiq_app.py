"""Tasks of taskiq on Penstock. With a server (`make run`) and a worker

    taskiq worker taskiq_app:broker

running, `python taskiq_app.py` sends a task and prints its result.
"""

import asyncio
import os

from penstock.integrations.taskiq import PenstockBroker

broker = PenstockBroker(os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8080"), max_attempts=3)


@broker.task(task_name="add")
async def add(left: int, right: int) -> int:
    return left + right


async def main() -> None:
    await broker.startup()
    task = await add.kiq(2, 3)
    result = await task.wait_result(timeout=30)
    print("2 + 3 =", result.return_value)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
