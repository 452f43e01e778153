"""The token of a detached lock: a text that names the lock, and has the secret that attaches it."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from zlib import crc32

from fencelock.cluster.client.lock_options import check_text_type

SECRET_BYTES = 16
"""Length of the random secret (bytes): nobody guesses it."""

_SUM_BYTES = 4


def token_of(lock: str, secret: bytes) -> str:
    """Return the token: letters, digits, ``-`` and ``_``, at most 368 of them."""
    body = secret + lock.encode()
    return urlsafe_b64encode(_sum(body) + body).decode().rstrip("=")


def lock_and_secret(token: str) -> tuple[str, bytes]:
    """Return the lock that a token names, and its secret.

    Raises:
        TypeError: ``token`` is not text.
        ValueError: it is no token. The text does not show it, since most of it may be right.

    """
    check_text_type("token", token)
    with suppress(ValueError):  # It has other characters.
        raw = urlsafe_b64decode(f"{token}{'=' * (-len(token) % 4)}")
        start, body = raw[:_SUM_BYTES], raw[_SUM_BYTES:]
        secret, name = body[:SECRET_BYTES], body[SECRET_BYTES:]
        if name and start == _sum(body):
            return name.decode(), secret
    raise ValueError(
        f"token is no text that detach returned ({len(token)} characters): was it cut, or changed "
        "on its way?"
    )


def _sum(body: bytes) -> bytes:
    return crc32(body).to_bytes(_SUM_BYTES)
