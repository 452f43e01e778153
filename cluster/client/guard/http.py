"""Fenced HTTP requests: middleware that refuses stale ones, for ASGI and WSGI."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import quote, unquote

from fencelock.actors.api.name import LOCK_NAME_BYTES_MAX
from fencelock.actors.error import StaleFenceError
from fencelock.cluster.client.guard.guard import FENCE_MAX, Guard, MemoryGuard

LOCK_HEADER = "Fencelock-Name"
FENCE_HEADER = "Fencelock-Fence"

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Response = tuple[int, str, dict[str, Any]]
"""Status, reason and JSON body of a refusal."""

STALE = 412, "Precondition Failed"
MISSING = 428, "Precondition Required"
WRONG = 400, "Bad Request"

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods that write nothing, and need no fence."""


def fence_headers(name: str, fence: int) -> dict[str, str]:
    """Return the headers of a request under ``fence`` of the lock ``name``."""
    return {LOCK_HEADER: quote(name, safe="/"), FENCE_HEADER: str(fence)}


class _Middleware:
    """The part that the two kinds of middleware share.

    Args:
        app: the application.
        guard: remembers fences; by default a `MemoryGuard` of this process. Workers that are
            several processes need one guard for all, like a `RedisGuard`.
        required: whether requests that write are refused without a fence (428).

    """

    def __init__(self, app: Any, guard: Guard | None = None, *, required: bool = False) -> None:
        self._app = app
        self._guard = MemoryGuard() if guard is None else guard
        self._required = required

    def _refusal(self, method: str, name: str | None, fence: str | None) -> Response | None:
        """Return the refusal of a request with these headers, or None if it may proceed."""
        if method in SAFE:
            return None
        if name is None and fence is None:
            if not self._required:
                return None
            return *MISSING, {"error": f"{LOCK_HEADER} and {FENCE_HEADER} are required"}
        if (
            name is None
            or fence is None
            or not 1 <= len((resource := unquote(name)).encode()) <= LOCK_NAME_BYTES_MAX
            or not re.fullmatch(r"[0-9]{1,19}", fence, re.ASCII)
            or not 1 <= int(fence) <= FENCE_MAX
        ):
            return *WRONG, {"error": f"{LOCK_HEADER} and {FENCE_HEADER} name no hold"}
        try:
            self._guard.check(resource, int(fence))
        except StaleFenceError as error:
            return _stale(error)
        return None


def _stale(error: StaleFenceError) -> Response:
    body = {"error": str(error), "fence": error.fence, "highest": error.highest}
    return *STALE, body


class FenceMiddleware(_Middleware):
    """ASGI middleware: requests under a stale fence are refused with 412, and change nothing.

    It checks when a request arrives. A handler that can be overtaken while it runs checks the
    fence once more, in the transaction of its write; a `StaleFenceError` that it raises becomes
    the same answer.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        name, fence = (
            None if value is None else value.decode("latin-1")
            for value in (headers.get(key.lower().encode()) for key in (LOCK_HEADER, FENCE_HEADER))
        )
        if (response := self._refusal(scope["method"], name, fence)) is None:
            began = False

            async def sending(message: Any) -> None:
                nonlocal began
                began = True
                await send(message)

            try:
                await self._app(scope, receive, sending)
            except StaleFenceError as error:
                if began:
                    raise
                response = _stale(error)
            else:
                return
        status, _, body = response
        headers_sent = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers_sent})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})


class WsgiFenceMiddleware(_Middleware):
    """WSGI middleware: the same as `FenceMiddleware`, for Django, Flask and the like."""

    def __call__(
        self, environ: dict[str, Any], start_response: Callable[..., Any]
    ) -> Iterable[bytes]:
        name, fence = (
            environ.get("HTTP_" + key.upper().replace("-", "_"))
            for key in (LOCK_HEADER, FENCE_HEADER)
        )
        response, error = self._refusal(environ["REQUEST_METHOD"], name, fence), None
        if response is None:
            try:
                body: Iterable[bytes] = self._app(environ, start_response)
            except StaleFenceError as stale:
                response, error = _stale(stale), sys.exc_info()
            else:
                return body
        status, reason, text = response
        headers = [("Content-Type", "application/json")]
        start_response(f"{status} {reason}", headers, error)
        return [json.dumps(text).encode()]
