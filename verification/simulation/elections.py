"""A workload with elections instead of locks, watchers of all elections, and its judge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fencelock.actors.api.changes import Change, ChangesRead
from fencelock.actors.api.election import ELECTION, Lead
from fencelock.actors.api.message import Granted, Refused
from fencelock.actors.api.name import client_of, kind_of, plain_name, titled
from fencelock.actors.effect import Effects, Send
from fencelock.actors.message import Address, address_of
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.role import Host
from fencelock.verification.simulation.log_judge import LogJudge
from fencelock.verification.simulation.maps import Watching, WatchJudge, is_of_watch
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.semaphores import LogOrder
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError, sent
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


@dataclass(slots=True)
class Terms:
    """The terms that one watcher has seen of one election."""

    leads: int
    """The fence of the present leader, 0 if nobody leads."""
    last: int
    """The highest fence that the watcher has seen, 0 for none."""


class ElectionJudge(LogJudge):
    """Judges one run of elections: the leaders as `LockJudge` does, and their watchers.

    - Watches and gaps: see `WatchJudge`. Each term ends before the next one begins, under a higher
      fence. No leader in the log is left out, except before a resync.
    - Values: a leader has the value of the candidate that was granted its fence.
    - Order: in the log, no candidate leads before an earlier candidate that still waits.
    """

    LOG = LogOrder

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.leaders: dict[str, dict[int, Address]] = {}
        """The candidate that was granted each fence in the log, by election and fence."""
        self.watches = WatchJudge()
        self.terms: dict[tuple[Address, str], Terms] = {}

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        event = delivered.event
        if isinstance(event, SlotOutcomes):
            for outcome in event.outcomes:
                if isinstance(outcome, Granted) and kind_of(outcome.lock) == ELECTION:
                    candidate = address_of(client_of(outcome.session), outcome.owner)
                    self.leaders.setdefault(outcome.lock, {})[outcome.fence] = candidate
        elif isinstance(event, ChangesRead) and delivered.to in self.contenders:
            self._see(delivered.to, event)
        if not (isinstance(event, Refused) and is_of_watch(event)):
            super().handled(delivered, effects)
        for lead in sent(effects, Lead) if delivered.to in self.contenders else ():
            self.wants[delivered.to] = lead.lock

    def left(self, client: str) -> None:
        super().left(client)
        self.watches.left(client)

    def _see(self, contender: Address, read: ChangesRead) -> None:
        self.watches.see(contender, read)
        if read.resync:
            if len(read.changes) > 1:
                raise ViolationError(f"watches: {contender} sees several leaders: {read!r}")
            fence = read.changes[0].fence if read.changes else 0
            self.terms[contender, read.lock] = Terms(fence, fence)
        for change in read.changes:
            if not read.resync:
                self._judge_change(contender, read.lock, change)
            self._judge_value(contender, read.lock, change)

    def _judge_change(self, contender: Address, lock: str, change: Change) -> None:
        name, terms = titled(lock), self.terms[contender, lock]
        if change.value is None:
            if change.fence != terms.leads:
                raise ViolationError(f"watches: {contender} of {name} at {terms}: {change!r}")
            terms.leads = 0
            return
        if terms.leads or change.fence <= terms.last:
            raise ViolationError(f"watches: {contender} of {name} at {terms}: {change!r}")
        known = self.leaders.get(lock, ())
        missed = [fence for fence in known if terms.last and terms.last < fence < change.fence]
        if missed:
            raise ViolationError(f"gaps: {contender} of {name} did not see {missed}: {change!r}")
        terms.leads = terms.last = change.fence

    def _judge_value(self, contender: Address, lock: str, change: Change) -> None:
        leader = self.leaders.get(lock, {}).get(change.fence)
        if change.value is None or leader is None:
            return
        if not change.value.decode().startswith(f"{leader}/"):
            raise ViolationError(f"values: {contender} sees {change!r} of {leader}")


ELECTIONS = Workload(Candidate, ElectionJudge)
