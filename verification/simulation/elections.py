"""A workload with elections instead of locks, watchers of all elections, and its judge."""

from __future__ import annotations

from typing import Any

from fencelock.actors.api.changes import ChangesRead
from fencelock.actors.api.election import ELECTION, Lead
from fencelock.actors.api.lock_message import Refused
from fencelock.actors.api.name import plain_name
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import Address
from fencelock.actors.role import Host
from fencelock.verification.simulation.judge import LockJudge
from fencelock.verification.simulation.maps import Watching, WatchJudge, is_of_watch
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.workload import ContenderPhase


class Candidate(Watching):
    """Leads in one of a few elections at a time, and watches all of them.

    At the end of a run, it is done only when its watch has shown the end of its own last term.
    """

    KIND = ELECTION
    MAY_ENTER_AGAIN = False

    def __init__(self, address: Address, host: Host, **options: Any) -> None:
        super().__init__(address, host, **options)
        self.ended: dict[str, int] = {}
        """The highest fence whose term the watch has shown to have ended, by election."""

    def _see(self, read: ChangesRead) -> Effects:
        if read.resync and not read.changes:
            self.ended[read.lock] = self.fence  # Nobody leads: the last own term has ended too.
        for change in read.changes:
            ended = change.fence if change.value is None else change.fence - 1
            self.ended[read.lock] = max(ended, self.ended.get(read.lock, 0))
        if (
            self.phase is ContenderPhase.RELEASING
            and not self.acquisitions
            and self._has_seen_its_end()
        ):
            self.phase = ContenderPhase.DONE
        return ()

    def _has_seen_its_end(self) -> bool:
        return self.ended.get(self.lock, 0) >= self.fence

    def _ask(self, wait_ms: int | None) -> Send:
        lead = Lead(
            election=plain_name(self.lock),
            value=f"{self.address}/{self.turn}",
            owner=self.owner,
            wait_ms=wait_ms,
        )
        return Send(self.session, lead)

    def _on_end(self, left: int) -> Effects:
        effects = super()._on_end(left)
        if self.phase is ContenderPhase.DONE and not self._has_seen_its_end():
            self.phase = ContenderPhase.RELEASING
        return effects


class ElectionJudge(LockJudge):
    """Judges one run of elections: the leaders as `LockJudge` does, and their watchers.

    - Watches, gaps and values: see `WatchJudge`.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.watches = WatchJudge(self.replay)

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event = delivered.event
        if isinstance(event, ChangesRead) and delivered.to in self.contenders:
            self.watches.see(delivered.to, event)
        if not (isinstance(event, Refused) and is_of_watch(event)):
            super().handled(delivered, effects)

    def left(self, client: str) -> None:
        super().left(client)
        self.watches.left(client)


ELECTIONS = Workload(Candidate, ElectionJudge)
