"""The clients of a run that use locks; some of them die or close, and others take their place."""

from __future__ import annotations

from fencelock.actors.message import NS_PER_MS, Address, address_of, node_of
from fencelock.actors.session.message import Close
from fencelock.actors.session.retained import RetainTerms
from fencelock.verification.simulation.judge import LockJudge, unserved
from fencelock.verification.simulation.plan import RunPlan
from fencelock.verification.simulation.retaining import OWNERS_ROLE
from fencelock.verification.simulation.workload import ClientPlan, Finish, LockUser, MakeSession
from fencelock.verification.simulation.world import World


def owner_name(number: int, place: int | None) -> str:
    """Return the name of an owner, with the place of its role if there are several roles."""
    return f"owner-{number}" if place is None else f"owner-{number}-{place}"


class Users:
    """Adds the clients of ``plan`` to ``world``, and lets them come and go.

    Args:
        world: the world of the clients.
        plan: the numbers of clients and owners, and the times at which clients die or close.
        proxies: the proxies that clients may use; each client begins with another one.
        make_session: makes a client's role ``session``.
        ttl_ms: TTL of their sessions, 0 if the cluster has no sessions.
        acquisitions: limit of an owner's holds of a lock at once.
        users: the roles of owners. If there are several, each owner of the plan stands for one
            owner of each role.
        prefix: the beginning of the clients' names.

    """

    def __init__(
        self,
        world: World,
        plan: RunPlan,
        proxies: tuple[Address, ...],
        make_session: MakeSession,
        *,
        ttl_ms: int,
        acquisitions: int,
        users: tuple[type[LockUser], ...] = (LockUser,),
        prefix: str = "c",
    ) -> None:
        self.world = world
        self.plan = plan
        self.judge: LockJudge | None = None
        locks = tuple(f"lock-{number}" for number in range(1, plan.locks + 1))
        owners = {
            owner_name(number, place if len(users) > 1 else None): user
            for number in range(1, plan.owners + 1)
            for place, user in enumerate(users)
        }
        names = [f"{prefix}{number + 1}" for number in range(plan.clients)]
        self.dying = names[: len(plan.deaths_ms + plan.closings_ms)]
        """The clients that die, or close, in order."""
        self.names = (*names, *(f"{name}r" for name in self.dying))
        for number, name in enumerate(self.names):
            turned = number % len(proxies)
            turned_proxies = proxies[turned:] + proxies[:turned]
            retain_ms = plan.retain_ms[number % len(plan.retain_ms)] if plan.retain_ms else 0
            client = ClientPlan(
                turned_proxies,
                owners,
                locks,
                make_session,
                ttl_ms,
                acquisitions,
                plan.unawaited_share,
                RetainTerms(retain_ms, plan.cohort) if retain_ms else None,
            )
            world.add(name, client.make_roles(), member=False)
        self.addresses = tuple(address_of(name, one) for name in self.names for one in owners)

    def begin(self) -> None:
        """Schedule the deaths and the ends of clients."""
        late = self.plan.late_start_ms * NS_PER_MS
        for name, at_ms in zip(self.dying, self.plan.deaths_ms, strict=False):
            self.world.at(max(late, at_ms * NS_PER_MS), self._die, name)
        for name, at_ms in zip(self.dying, self.plan.closings_ms, strict=False):
            self.world.at(max(late, at_ms * NS_PER_MS), self._close, name)

    def finish(self) -> None:
        """Let each contender get a lock once more."""
        for user in self.contenders():
            self.world.nodes[node_of(user)].tell(user, Finish())

    def close(self) -> None:
        for name in sorted({node_of(user) for user in self.contenders()}):
            self._tell_to_close(name)

    def contenders(self) -> dict[Address, LockUser]:
        """Return the living contenders, in order."""
        living = (user for user in self.addresses if node_of(user) not in self.dying)
        return {user: self.world.role_at(user) for user in living}

    def waiting(self) -> list[str]:
        return unserved(self.contenders())

    def _die(self, name: str) -> None:
        """Let a client die for good, and another one take its place."""
        self.world.fault_counts["death of a client"] += 1
        self.world.crash(name)
        self.world.power_on(f"{name}r")

    def _close(self, name: str) -> None:
        """Let a client close, and another one take its place."""
        self.world.fault_counts["close of a client"] += 1
        if self.judge is not None:
            self.judge.left(name)
        self._tell_to_close(name)
        self.world.power_on(f"{name}r")

    def _tell_to_close(self, name: str) -> None:
        """Close the session of a client, and before that its retained locks, if it has any."""
        node = self.world.nodes[name]
        owners = address_of(name, OWNERS_ROLE)
        retains = owners in node.scheduler.roles
        node.tell(owners if retains else address_of(name, "session"), Close())
