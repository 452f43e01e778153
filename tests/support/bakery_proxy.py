"""The proxy of a `bakery` node that does not lead, by hand."""

from __future__ import annotations

from random import Random

from fencelock.actors.bakery.backend import BakeryBackend
from fencelock.actors.bakery.config import Terms, election_of, proxy_of
from fencelock.actors.bakery.event import Member, Readiness
from fencelock.actors.bakery.message import Chosen
from fencelock.actors.effect import Send
from fencelock.actors.proxy.proxy import Proxy
from support.role_harness import RoleHarness

MEMBERS = ("n1", "n2", "n3", "n4")
LEADERS = MEMBERS[:3]
TERMS = Terms()


class BakeryProxyHarness(RoleHarness[Proxy]):
    """The proxy of n4; n1, n2 and n3 lead."""

    def __init__(self, terms: Terms = TERMS, seed: int = 1) -> None:
        super().__init__(
            lambda host: Proxy(
                proxy_of("n4"),
                host,
                backend=BakeryBackend("n4", MEMBERS, terms, Random(seed), 1),
            )
        )

    def learn(
        self,
        epoch: int = 1,
        leaders: tuple[str, ...] = LEADERS,
        reachable: tuple[str, ...] = MEMBERS,
        members: tuple[Member, ...] = (),
    ) -> list[Send]:
        """Tell the proxy who leads, and who can be reached."""
        readiness = Readiness(
            epoch=epoch,
            leaders=tuple(Chosen(name, 1) for name in leaders),
            reachable=reachable,
            ready=True,
            detail="ready",
            members=members,
        )
        return self.hear(election_of("n4"), readiness)
