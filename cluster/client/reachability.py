"""The reasons why addresses cannot be reached, for the error of a client that found no node."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from fencelock.cluster.host.pending_asks import AskReply

UNANSWERED = "accepts connections, but no node of the cluster answered"

LOOK_S = 1.0
"""Time limit for connecting to all addresses (s)."""


def looking(endpoints: tuple[str, ...]) -> AskReply:
    """Begin to connect to ``endpoints``; the reply is a line about them, after `LOOK_S` at most.

    ZeroMQ does not tell why a connection fails, so this asks the system.
    """
    reply = AskReply()
    _begin(lambda: reply.set(_look(endpoints)))
    return reply


def _look(endpoints: tuple[str, ...]) -> str:
    found: dict[str, str] = {}
    lookers = [_begin(lambda at=at: found.update({at: why_unreached(at)})) for at in endpoints]  # type: ignore[misc]
    ends = time.monotonic() + LOOK_S
    for looker in lookers:
        looker.join(max(0.0, ends - time.monotonic()))
    late = "its host is not found in time"
    return "; ".join(f"{at}: {found.get(at, late)}" for at in endpoints)


def _begin(work: Callable[[], None]) -> threading.Thread:
    """Run ``work`` on a thread that does not keep the process alive."""
    thread = threading.Thread(target=work, name="fencelock-look", daemon=True)
    thread.start()
    return thread


def why_unreached(endpoint: str, reached: str = UNANSWERED) -> str:
    """Return why no node answers at ``endpoint``; ``reached`` if it accepts connections."""
    try:
        parts = urlsplit(endpoint)
        with socket.create_connection((parts.hostname or "", parts.port or 0), LOOK_S * 0.9):
            return reached
    except TimeoutError:
        return f"its host does not answer within {LOOK_S:g} s"
    except socket.gaierror as error:
        return f"its host is not known ({error.strerror})"
    except ValueError:  # Such as a..b or [::1::].
        return "its host is neither a name nor an address"
    except OSError as error:
        return f"cannot be reached ({(error.strerror or str(error)).lower()})"
