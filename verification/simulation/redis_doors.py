"""A workload with clients of Redis doors and native users of the same locks, and its judge."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import partial
from typing import Any

from fencelock.actors.api.message import Granted, Refused
from fencelock.actors.api.name import NO_CLIENT, plain_name
from fencelock.actors.api.redis import (
    AwaitKey,
    ChangeKeys,
    Expiry,
    KeyAction,
    KeyOutcome,
    KeysChanged,
    KeysRead,
    KeysRequest,
    KeyState,
    ReadKeys,
)
from fencelock.actors.api.refusal import Cause
from fencelock.actors.api.request import Key
from fencelock.actors.api.session_message import Evicted, HoldLost
from fencelock.actors.effect import Effects, Send
from fencelock.actors.lease import DRIFT_PPM
from fencelock.actors.message import NS_PER_MS, Message, node_of, role_of
from fencelock.actors.paxos.event import SlotOutcomes
from fencelock.actors.table.wire import Queued
from fencelock.verification.simulation.deadlines import LogTime
from fencelock.verification.simulation.judge import JudgedHold
from fencelock.verification.simulation.log_judge import LogJudge, SlotSequence
from fencelock.verification.simulation.redis_users import (
    PREFIX,
    ClientTold,
    RedisLock,
    Step,
    door_roles,
)
from fencelock.verification.simulation.run import Workload
from fencelock.verification.simulation.trace import Delivery
from fencelock.verification.simulation.violation import ViolationError
from fencelock.verification.simulation.workload import HANDED

PPM = 1_000_000


@dataclass(slots=True)
class JudgedKey:
    """A key that is held through a door, as derived from the outcomes in the log."""

    value: bytes
    fence: int
    reserved: bool
    ends: int | None
    """Its deadline in counted log time, None for none."""
    known: bool = True
    """Whether the deadline is known."""
    times: int = 1
    """Number of its counted holds."""


class KeyLog(SlotSequence):
    """Replays the holds of the doors in the order of the log; see `RedisJudge`."""

    REQUESTS = (KeysRequest,)

    def __init__(self) -> None:
        super().__init__()
        self.time = LogTime()
        self.held: dict[str, JudgedKey] = {}
        self.forced: dict[str, JudgedKey] = {}
        """What was taken by force in this slot."""
        self.values: dict[str, list[tuple[int, bytes | None]]] = defaultdict(lambda: [(0, None)])
        """By key, the slots after which its value changed, and the value from there on."""
        self.fence = 0
        """The highest fence that was granted."""
        self.queues: dict[str, list[Key]] = defaultdict(list)
        """The requests that wait for each lock, of native users and of doors, in order."""
        self.receipts: dict[str, JudgedKey] = {}
        """The outcomes of unlocks that may be kept, by the names of their receipts."""
        self.granted: set[int] = set()
        """The fences of all native grants."""

    def _judge(self, report: SlotOutcomes, /) -> None:
        if not self.time.pass_to(report.slot):
            for key in self.held.values():
                key.known = False
        for outcome in report.outcomes:
            self._replay(outcome)
        self.forced.clear()
        for name, key in self.held.items():
            if key.known and key.ends is not None and self.time.counted_ms >= key.ends:
                raise ViolationError(f"late: {name} is held at {self.time.counted_ms}: {key}")
        for name in {*self.values, *self.held}:
            held = self.held.get(name)
            value = None if held is None else held.value
            if self.values[name][-1][1] != value:
                self.values[name].append((report.slot + 1, value))

    def at(self, name: str, slot: int) -> bytes | None:
        """Return the value of a key after all slots before ``slot``, None if no door holds it."""
        return next(value for since, value in reversed(self.values[name]) if since <= slot)

    def _replay(self, outcome: Message) -> None:
        match outcome:
            case Granted(lock=lock) | HoldLost(lock=lock) if lock.startswith(HANDED):
                pass
            case Granted():
                self._on_granted(outcome)
            case HoldLost(session=session) if session == NO_CLIENT:
                self._on_lost(outcome)
            case KeysChanged():
                self._on_changed(outcome)
            case Queued(lock=lock, key=number):
                queue = self.queues[plain_name(lock)]
                if number not in queue:
                    queue.append(number)
            case Refused(lock=lock, key=number):
                queue = self.queues[plain_name(lock)]
                if number in queue:
                    queue.remove(number)
            case _:
                pass

    def _on_granted(self, granted: Granted) -> None:
        lock, fence = granted.lock, granted.fence
        if lock in self.held:
            raise ViolationError(f"exclusion: {granted!r} while {self.held[lock]}")
        if granted.session != NO_CLIENT and fence not in self.granted:
            self._pass(lock, granted.key, granted)
            self.granted.add(fence)
        elif granted.session == NO_CLIENT and fence <= self.fence:
            raise ViolationError(f"fences: {granted!r} after fence {self.fence}")
        self.fence = max(self.fence, fence)
        kept = self.receipts.pop(lock, None)
        if kept is not None:
            kept.fence = fence
            self.held[lock] = kept

    def _on_lost(self, lost: HoldLost) -> None:
        key = self.held.pop(lost.lock, None)
        if key is None or key.fence != lost.fence or lost.why is None:
            raise ViolationError(f"exclusion: {lost!r} while {key}")
        left_ms = 1 if key.ends is None else key.ends - self.time.counted_ms
        if lost.why.cause is Cause.DEADLINE and key.known and left_ms > 0:
            raise ViolationError(f"early: {lost!r} with {left_ms} ms left: {key}")
        if lost.why.cause is Cause.TAKEN:
            self.forced[lost.lock] = key

    def _on_changed(self, changed: KeysChanged) -> None:
        number = changed.key
        if not self.is_first(number, changed):
            return
        command = self.commands[number]
        if isinstance(command, ChangeKeys) and command.receipt:
            self._judge_receipt(command, changed)
        for name, one in zip(command.keys, changed.keys, strict=True):
            if one.changed and one.state is KeyState.FREE:
                self._pass(name, number, changed)
            self._judge_key(command, name, one)

    def _judge_receipt(self, command: ChangeKeys, changed: KeysChanged) -> None:
        """Judge whether an unlock that was repeated changes nothing, and has the first outcome."""
        kept, (one,) = self.held.get(command.receipt), changed.keys
        if changed.value != (None if kept is None else kept.value) or (kept and one.changed):
            raise ViolationError(f"once: {changed!r} by {command!r}, and the receipt was {kept}")
        if one.changed:
            ends = self.time.counted_ms + command.receipt_ms + 1
            value = b"0" if one.times else b"1"
            self.receipts[command.receipt] = JudgedKey(value, 0, reserved=False, ends=ends)

    def _pass(self, name: str, number: Key, outcome: Message) -> None:
        """Check that a request is granted a free lock as the next one, or while nobody waits."""
        queue = self.queues[name]
        if queue and queue[0] != number and name.startswith(PREFIX):
            raise ViolationError(f"order: {outcome!r} overtakes {queue[0]}")
        if number in queue:
            queue.remove(number)

    def _judge_key(self, command: KeysRequest, name: str, one: KeyOutcome) -> None:
        """Judge what has become of a key."""
        held = self.held.get(name)
        before = held if one.state is not KeyState.OTHER or held else self.forced.get(name)
        if not self._is_state(command, one.state, before):
            raise ViolationError(f"state: {one} by {command!r}, while {name} is held by {before}")
        if not one.changed:
            return
        if isinstance(command, ChangeKeys) and one.state not in command.states:
            raise ViolationError(f"state: {one} was changed by {command!r}")
        counts = isinstance(command, ChangeKeys) and command.counts
        deletes = isinstance(command, ChangeKeys) and command.action is KeyAction.DELETE
        times = 1 if before is None or one.state is not KeyState.EQUAL else before.times
        if deletes:
            times = times - 1 if counts else 0
        elif counts and one.state is KeyState.EQUAL:
            times += 1
        if one.times != times:
            raise ViolationError(f"counts: {one} by {command!r}, and not {times}")
        if not times:
            del self.held[name]
            return
        kept = one.state in {KeyState.EQUAL, KeyState.RESERVED}
        if kept and before is not None and before.fence != one.fence:
            raise ViolationError(f"fences: {one} by {command!r}, and the fence was {before.fence}")
        if not kept and before is not None and one.fence <= before.fence:
            raise ViolationError(f"fences: {one} by {command!r}, and the fence was {before.fence}")
        self._judge_deadline(command, one, before if kept else None)
        ends = None if one.left_ms is None else self.time.counted_ms + one.left_ms + 1
        sets = not isinstance(command, ChangeKeys) or command.action is KeyAction.SET
        value = command.value if sets or before is None else before.value
        reserved = isinstance(command, AwaitKey)
        self.held[name] = JudgedKey(value, one.fence, reserved, ends, times=times)

    def _is_state(self, command: KeysRequest, state: KeyState, held: JudgedKey | None) -> bool:
        if held is None or state in {KeyState.FREE, KeyState.NATIVE, KeyState.AWAITED}:
            return held is None and state in {KeyState.FREE, KeyState.NATIVE, KeyState.AWAITED}
        expected = command.expected if isinstance(command, ChangeKeys) else None
        if state is KeyState.RESERVED:
            turn = command.turn if isinstance(command, ChangeKeys) else None
            return held.reserved and held.value == (command.value if turn is None else turn)
        return (held.value == expected) is (state is KeyState.EQUAL)

    def _judge_deadline(
        self, command: KeysRequest, one: KeyOutcome, before: JudgedKey | None
    ) -> None:
        """Check that a key is held for the time that was asked for, to the millisecond."""
        left_ms: int | None = command.ttl_ms or None
        if isinstance(command, ChangeKeys) and command.expiry is Expiry.FURTHER:
            if before is None or before.ends is None or not before.known:
                return
            left_ms = before.ends - 1 - self.time.counted_ms + command.ttl_ms
        elif isinstance(command, ChangeKeys) and command.expiry is not Expiry.AFTER:
            return
        if one.left_ms != left_ms:
            raise ViolationError(f"deadline: {one} by {command!r}, and not {left_ms} ms")


class RedisJudge(LogJudge):
    """Judges the locks of one run as `LockJudge` does, and the clients of the doors with them.

    - Mutual exclusion: no client of a door relies on a key, from the reply until it deletes it or
      until its time is over by true time, while another one or a native user does.
    - State, once: in the order of the log, each request finds the keys as the last one left them. A
      repeated request has the outcome of the first.
    - Exclusion, fences: nobody is granted a key that is held through a door. A new hold has a fence
      above all others, and a hold that goes on keeps its fence.
    - Order: whoever waits for a key, native or not, is granted it in the order of the log, and no
      request but one by force overtakes.
    - Early, late, deadline: a key ends at its deadline, exactly, in log time without the times
      between leaderships; and that is as far away as was asked for.
    - Counts: a key ends with as many removals as there were additions. A removal that is repeated
      with its receipt changes nothing, and has the same reply.
    - Deletes: of one hold, one compare-and-delete at most takes effect.
    - Reads: a read returns the values before its slot, which comes after all holds that any client
      knew when it was sent.
    """

    LOG = KeyLog
    log: KeyLog

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.now = 0
        self.asked: dict[bytes, tuple[int, bool]] = {}
        """The time until which the last request of each token lets it rely on its key (ns), and
        whether it is by force."""
        self.until: dict[str, int] = {}
        """The time until which the client of a door relies on a key (ns)."""
        self.tokens: dict[str, bytes] = {}
        self.deleted: set[bytes] = set()
        self.taking: dict[str, int] = {}
        """By lock, the fence of the last hold that was taken by force."""
        self.taken: dict[str, dict[int, int]] = defaultdict(dict)
        """By lock, the fence of each hold that was taken by force, and that of the next hold."""
        self.tokens_taken: set[bytes] = set()
        """The tokens of clients of doors whose holds were taken by force."""
        self.miscounted: set[bytes] = set()
        """The tokens whose clients may count a hold that is over."""
        self.reading: dict[tuple[str, int], tuple[tuple[str, ...], int]] = {}
        """The keys of reads in flight, by node and number, and the slot that was known then."""
        self.slots: dict[int, int] = {}
        """The slot in which the log first has each fence of a key."""
        self.floor = 0
        """The slot after all that any client knows by a reply."""

    def handled(self, delivered: Delivery, effects: Effects) -> None:
        self.now = delivered.time
        event = delivered.event
        self.log.time.note(event)
        match event:
            case SlotOutcomes():
                self._note_slot(event)
            case ReadKeys() if role_of(delivered.to) == "session":
                self.reading[delivered.node, event.request] = event.keys, self.floor
            case KeysChanged() if role_of(delivered.to) == "redis":
                known = max(self.slots.get(one.fence, -1) for one in event.keys)
                self.floor = max(self.floor, known + 1)
            case KeysRead() if role_of(delivered.to) == "redis":
                self._read(delivered.node, event)
            case _:
                pass
        for effect in effects:
            if type(effect) is Send and isinstance(effect.message, ClientTold):
                self._step(delivered, effect.message)
        super().handled(delivered, effects)

    def may_be_inside(self, hold: JudgedHold) -> bool:
        if node_of(hold.contender) in self.members:
            return self.now < self.until[hold.lock]
        return super().may_be_inside(hold)

    def _enter(self, delivered: Delivery, granted: Granted) -> None:
        """Let a native user enter, unless its lock was taken by force before the grant came.

        The fences of a hold that its client retains are between its first and the next of the lock.
        """
        taken = self.taken[granted.lock].items()
        if any(first <= granted.fence < after for first, after in taken):
            self.wants.pop(delivered.to, None)
        else:
            super()._enter(delivered, granted)

    def left(self, client: str) -> None:
        """End the holds of a client that dies. The clients of a door outlive its node."""
        kept = {lock: hold for lock, hold in self.inside.items() if client in self.members}
        super().left(client)
        self.inside.update(kept)

    def _note_slot(self, slot: SlotOutcomes) -> None:
        for outcome in slot.outcomes:
            if isinstance(outcome, KeysChanged):
                self._note_force(outcome)
                for one in outcome.keys:
                    self.slots.setdefault(one.fence, slot.slot)
            elif isinstance(outcome, Evicted):
                self.taking[outcome.lock] = outcome.fence
                self.tokens_taken.add(outcome.holder.owner.encode())

    def _note_force(self, changed: KeysChanged) -> None:
        """Let the former holder of a key that was taken by force be outside."""
        command = self.log.commands.get(changed.key)
        if command is None or changed.key in self.log.outcomes:
            return
        for name, one in zip(command.keys, changed.keys, strict=True):
            if one.changed and one.state in {KeyState.OTHER, KeyState.NATIVE}:
                self.inside.pop(name, None)
                self.taken[name][self.taking[name]] = one.fence

    def _step(self, delivered: Delivery, told: ClientTold) -> None:
        lock, token = told.lock, told.token
        match told.step:
            case Step.ASKS | Step.FORCES | Step.LEAVES_ONE:
                lasts = told.ttl_ms * NS_PER_MS * (PPM - 2 * DRIFT_PPM) // PPM
                self.asked[token] = delivered.time + lasts, told.step is Step.FORCES
                if self.tokens.get(lock) == token:  # It may be for a shorter time than before.
                    self.until[lock] = min(self.until[lock], delivered.time + lasts)
                if told.step is Step.LEAVES_ONE and token in self.miscounted:
                    self._leave_key(
                        lock, token
                    )  # Until the reply says that it still holds the key.
            case Step.ENTERS:
                self.grants += 1
                self._enter_key(delivered, lock, token)
            case Step.LEAVES:
                self._leave_key(lock, token)
            case Step.DELETED:
                if token in self.deleted:
                    raise ViolationError(f"deletes: {token!r} was deleted twice")
                self.deleted.add(token)
            case Step.DIFFERS:
                raise ViolationError(f"once: an unlock by {token!r} was repeated, with two replies")

    def _leave_key(self, lock: str, token: bytes) -> None:
        if self.tokens.get(lock) == token:
            self.inside.pop(lock, None)
            del self.tokens[lock]

    def _enter_key(self, delivered: Delivery, lock: str, token: bytes) -> None:
        until, forces = self.asked[token]
        other = self.inside.get(lock)
        mine = self.tokens.get(lock) == token
        if until <= delivered.time or (mine and self.until[lock] <= delivered.time):
            self.miscounted.add(token)
        if until <= delivered.time or token in self.tokens_taken:
            return  # Its hold was over before the reply came.
        excludes = other is not None and not mine and not forces and self.clocks_true
        if excludes and other is not None and self.may_be_inside(other):
            raise ViolationError(
                f"mutual exclusion: {token!r} holds {lock} while {other.contender} does, since "
                f"{other.since / NS_PER_MS:.3f} ms"
            )
        self.inside[lock] = JudgedHold(delivered.to, lock, 0, delivered.time, "", 0)
        self.until[lock], self.tokens[lock] = until, token

    def _read(self, node: str, read: KeysRead) -> None:
        keys, floor = self.reading.pop((node, read.request), ((), 0))
        if read.slot < floor:
            raise ViolationError(f"reads: {read!r} of slot {read.slot}, but {floor} was known")
        self.floor = max(self.floor, read.slot)
        self.log.when_known(read.slot, partial(self._judge_read, keys, read))

    def _judge_read(self, keys: tuple[str, ...], read: KeysRead) -> None:
        seen = {one.key: one.value for one in read.keys if not one.native}
        for name in keys:
            value = self.log.at(name, read.slot)
            if seen.get(name) != value:
                raise ViolationError(f"reads: {read!r}, and {name} was {value!r}")


REDIS_DOORS = Workload(RedisLock, RedisJudge, retains=True, doors=door_roles)
