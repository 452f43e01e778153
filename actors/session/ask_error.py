"""The errors of requests to roles of other processes, which are also errors of Pykka.

They are not among the other errors, since the table imports those, and needs no Pykka.
"""

from __future__ import annotations

import pykka

from fencelock.actors.api.message import ERRORS, Reason
from fencelock.actors.error import FencelockError, UnavailableError


class RoleGoneError(UnavailableError, pykka.ActorDeadError):
    """The role that was asked, or its node, does not run, or cannot be reached.

    The text names the roles or the nodes that do. If the request had been sent before, it is
    unknown whether the role received it.
    """


class AskTimeoutError(FencelockError, pykka.Timeout, TimeoutError):
    """A role of another process sent no reply in time. It may have received the request."""


ERRORS[Reason.GONE] = RoleGoneError
