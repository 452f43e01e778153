"""FastAPI: one request at a time works on an order, on all machines together.

    FENCELOCK_CONNECT=tcp://10.0.0.1:4040 uvicorn fastapi_app:app --workers 4

Each worker process connects when it first needs a lock, so the service starts while no node runs. A
request waits for the lock for 5 s.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException

from fencelock import LockTimeoutError, UnavailableError, aio

app = FastAPI()
paid: dict[str, int] = {}


async def order_lock(order: str) -> AsyncIterator[aio.Hold]:
    """Hold the lock of ``order`` until the response is ready; answer 409 if it is taken."""
    try:
        async with aio.lock(f"orders/{order}", timeout=5) as hold:
            yield hold
    except LockTimeoutError:
        raise HTTPException(409, f"order {order} is being worked on") from None
    except UnavailableError:
        raise HTTPException(503, "the lock service does not answer") from None


@app.post("/orders/{order}/pay")
async def pay(order: str, hold: Annotated[aio.Hold, Depends(order_lock)]) -> dict[str, int | str]:
    paid[order] = paid.get(order, 0) + 1
    return {"order": order, "fence": hold.fence, "paid": paid[order]}
