"""A FastAPI application that publishes, sends a task, and runs its worker in the same process.

`uvicorn fastapi_app:api`, with a server running (`make run`).
"""

import os

from fastapi import FastAPI
from pydantic import BaseModel

import penstock
from penstock.integrations.fastapi import Queue, install_error_handler, lifespan

URL = os.environ.get("PENSTOCK_URL", "http://127.0.0.1:8080")
tasks = penstock.App(URL)


@tasks.task(queue="sums")
async def add(left: int, right: int) -> int:
    return left + right


class Order(BaseModel):
    """The body of a request."""

    id: int


api = FastAPI(lifespan=lifespan(URL, app=tasks, work=True))
install_error_handler(api)


@api.post("/orders", status_code=202)
async def order(body: Order, q: Queue) -> int:
    return (await q.publish("orders", body)).id


@api.get("/sum")
async def sum_of(left: int, right: int) -> int:
    handle = await add.send(left, right)
    return await handle.result(timeout_ms=30_000)
