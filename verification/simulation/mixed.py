"""A workload with several kinds of objects in one run, and the judges of these kinds."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from fencelock.actors.effect import Effects
from fencelock.actors.message import Address, role_of
from fencelock.verification.simulation.judge import LockJudge
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.trace import Delivery


class MixedJudge(LockJudge):
    """Lets the judge of each kind observe the contenders of its kind.

    Args:
        kinds: the workloads of the kinds. The place of a workload among them ends the names of its
            owners.
        members: the nodes of the cluster.
        contenders: the contenders of all kinds.
        options: those of `LockJudge`.

    """

    def __init__(
        self,
        kinds: Sequence[Workload],
        members: tuple[str, ...],
        contenders: tuple[Address, ...],
        **options: Any,
    ) -> None:
        super().__init__(members, contenders, **options)
        self.parts = [
            kind.judge(
                members,
                tuple(one for one in contenders if role_of(one).endswith(f"-{place}")),
                **options,
            )
            for place, kind in enumerate(kinds)
        ]
        self.inside = cast("Any", ChainMap(*(cast("Any", part.inside) for part in self.parts)))

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        for part in self.parts:
            part.handled(delivered, effects)
        self.grants = sum(part.grants for part in self.parts)

    def crashed(self, node: str, boot: int) -> None:
        for part in self.parts:
            part.crashed(node, boot)

    def left(self, client: str) -> None:
        for part in self.parts:
            part.left(client)


def mixed(kinds: Sequence[Workload]) -> Workload:
    """Return a workload of all ``kinds`` at once; each client has owners of each kind."""
    first, *others = (kind.user for kind in kinds)
    doors = next((kind.doors for kind in kinds if kind.doors is not None), None)
    return Workload(first, partial(MixedJudge, kinds), tuple(others), doors=doors)
