"""The request to lead in an election. Tag 0xe9.

An election is an exclusive object with a public value: the owner that holds it leads, and all
clients can read its value. Clients can also watch an election, see `fencelock.actors.api.changes`.
Its claims form one queue, in the order of the log. A `Release` with the name of the object in the
table and the fence ends the term.
"""

from fencelock.actors.api.lock_message import AcquireRequest
from fencelock.actors.api.name import check_text
from fencelock.actors.api.object_request import PermitRequest
from fencelock.actors.message import Int64

ELECTION = "election"

ELECTION_VALUE_BYTES_MAX = 1_024
"""Maximum length of a leader's value (bytes of UTF-8): an address, or a short description."""


class Lead(PermitRequest, tag=0xE9):
    """Lead in ``election`` with a public ``value``. The replies are those to an `Acquire`.

    ``wait_ms`` and ``label`` are those of `Acquire`.
    """

    election: str
    value: str = ""
    wait_ms: Int64 | None = None
    label: str = ""

    KIND = ELECTION
    limit = 1
    permits = 1

    def check(self) -> None:
        AcquireRequest.check(self)
        check_text("value", self.value, ELECTION_VALUE_BYTES_MAX)
