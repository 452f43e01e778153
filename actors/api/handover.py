"""Requests that hand a lock from one client to another, which shows a secret. Tags 0x128, 0x129.

A client that *detaches* its lock leaves it held for a limited time, but by no client. A client
that knows the secret can *attach* it, once, and then holds it as if it had acquired it. Nobody in
the queue gets the lock in between. The cluster keeps only the digest of the secret.
"""

from fencelock.actors.api.lock_message import AcquireRequest, ReleaseRequest
from fencelock.actors.api.name import WAIT_MS_MAX, check_lock_name, check_number
from fencelock.actors.message import Int64

DIGEST_BYTES = 32
"""Length of the digest of a secret (bytes)."""

SECRET_BYTES_MAX = 64
"""Maximum length of a secret (bytes). Clients of this package draw 16 random bytes."""


def digest_of(secret: bytes) -> bytes:
    """Return the digest of a secret, which a client sends when it detaches a lock."""
    from hashlib import sha256  # noqa: PLC0415 (OpenSSL: most clients detach nothing)

    return sha256(secret).digest()


class Detach(ReleaseRequest, tag=0x128):
    """Keep ``lock``, which I hold under ``fence``, for whoever knows a secret.

    Answered by `Released` or `Refused`. The lock stays held for ``ttl_ms``, 1 ms to a week, under a
    new fence and in no client's session; then the next in the queue gets it. ``digest`` is the
    SHA-256 of the secret that attaches it. Only a plain lock that is held once can be detached.
    """

    lock: str
    digest: bytes
    ttl_ms: Int64

    REFUSABLE = True

    def check(self) -> None:
        check_lock_name(self.lock)
        ReleaseRequest.check(self)
        check_number("length of digest", len(self.digest), DIGEST_BYTES, DIGEST_BYTES)
        check_number("ttl_ms", self.ttl_ms, 1, WAIT_MS_MAX)


class Attach(AcquireRequest, tag=0x129):
    """Let me hold ``lock``, which was detached with the digest of ``secret``.

    Answered by `Granted`, under a new fence, or `Refused`: NOT_HELD if the secret was used, or the
    lock is not detached any more. It never waits. ``label``, ``hold_ms`` and ``grace_ms`` are those
    of `Acquire`.
    """

    lock: str
    secret: bytes
    label: str = ""
    hold_ms: Int64 = 0
    grace_ms: Int64 = 0

    WAITS = False
    wait_ms = 0
    limit = 1
    permits = 1

    def check(self) -> None:
        AcquireRequest.check(self)
        check_number("length of secret", len(self.secret), 1, SECRET_BYTES_MAX)
