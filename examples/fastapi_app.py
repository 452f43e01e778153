"""FastAPI: one request at a time works on an order, on all machines together.

    FENCELOCK_CONNECT=tcp://10.0.0.1:4040 uvicorn fastapi_app:app --workers 4

Each worker process connects once, when it starts. A request waits for the lock for 5 s.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request

from fencelock import LockTimeoutError, aio


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
    async with aio.connect() as client:
        app.state.locks = client
        yield


app = FastAPI(lifespan=lifespan)
paid: dict[str, int] = {}


async def order_lock(order: str, request: Request) -> AsyncIterator[aio.Hold]:
    """Hold the lock of ``order`` until the response is ready; answer 409 if it is taken."""
    lock = request.app.state.locks.lock(f"orders/{order}", timeout=5)
    try:
        hold = await lock.acquire()
    except LockTimeoutError:
        hold = None
    if hold is None:
        raise HTTPException(409, f"order {order} is being worked on")
    async with hold:
        yield hold


@app.post("/orders/{order}/pay")
async def pay(order: str, hold: Annotated[aio.Hold, Depends(order_lock)]) -> dict[str, int | str]:
    paid[order] = paid.get(order, 0) + 1
    return {"order": order, "fence": hold.fence, "paid": paid[order]}
