"""The contests of examples/cluster.py --objects. A new kind needs a class, and a line at the end.

The first are for objects that clients hold: locks, semaphores, read/write locks, several locks. The
others are for objects with a state that clients see: elections, maps, counters and so on.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NamedTuple

from contest import (
    PATIENCE_S,
    WHOLE,
    Contest,
    Player,
    Record,
    Turn,
    beyond_capacity,
    lost_updates,
    unordered_fences,
)

import fencelock

PERMITS = 3
WRITES = 0.3
"""Share of the turns of a read/write lock that write."""
AUDITS = 0.3
"""Share of the turns with accounts that need only one account."""
BALANCE = 100
"""The initial balance of each account."""

COUNT = 2
"""The initial count of each latch, and the number of parties of each barrier."""

MEETING_S = 2.0
"""Timeout of a player that waits at a barrier (s)."""


class LockContest(Contest):
    """Counters, each under its own lock. A player reads, pauses and writes."""

    kind = "lock"
    promise = "one holder at a time, no lost updates, rising fences"
    names: ClassVar[tuple[str, ...]] = ("tasks", "orders")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.updates: dict[str, int] = {}

    def play(self, player: Player) -> Turn | None:
        name = player.chance.choice(self.names)
        began = time.monotonic()
        hold = player.client.lock(name).acquire(timeout=PATIENCE_S)
        if hold is None:
            return None
        turn = Turn.since(began)
        self.use(player, {name: hold.fence})
        hold.release()
        return turn

    def use(self, player: Player, fences: dict[str, int]) -> None:
        """Read the state that the held locks protect, and write a new one."""
        self.evidence.note(who=player.name, fences=fences, amount=1)
        for record in self.evidence.news():
            self.learn(record)
        facts = self.changed(tuple(fences))
        player.work()
        self.evidence.note(who=player.name, fences=fences, amount=0, **facts)

    def learn(self, record: Record) -> None:
        """Take over the state that ``record`` shows as written."""
        self.updates |= record.get("updates", {})

    def changed(self, names: tuple[str, ...]) -> Record:
        """Return the fields to write."""
        return {"updates": {name: self.updates.get(name, 0) + 1 for name in names}}

    @staticmethod
    def problems(records: Sequence[Record]) -> list[str]:
        return [
            *beyond_capacity(records, 1),
            *unordered_fences(records, 1),
            *lost_updates(records),
        ]


class SemaphoreContest(Contest):
    """Printers. Each player uses some of them, and releases them one after the other."""

    kind = "semaphore"
    promise = f"at most {PERMITS} permits in use, a fence of its own for each hold"
    names = ("semaphore:printers",)

    def play(self, player: Player) -> Turn | None:
        semaphore = player.client.semaphore("printers", permits=PERMITS)
        amount = player.chance.randint(1, PERMITS)
        began = time.monotonic()
        hold = semaphore.acquire(amount, timeout=PATIENCE_S)
        if hold is None:
            return None
        turn = Turn.since(began)
        fences = {semaphore.name: hold.fence}
        self.evidence.note(who=player.name, fences=fences, amount=amount)
        player.work()
        if amount > 1 and player.chance.random() < 0.5:
            self.evidence.note(who=player.name, fences=fences, amount=amount - 1)
            semaphore.release(1)
            player.work()
        self.evidence.note(who=player.name, fences=fences, amount=0)
        hold.release()
        return turn

    @staticmethod
    def problems(records: Sequence[Record]) -> list[str]:
        return [*beyond_capacity(records, PERMITS), *unordered_fences(records, PERMITS)]


class ReadWriteContest(Contest):
    """Settings in two files. A writer changes one after the other, and a reader compares them."""

    kind = "rwlock"
    promise = "writers alone, no half-written state, rising fences of writers"
    names = ("rwlock:settings",)

    def play(self, player: Player) -> Turn | None:
        write = player.chance.random() < WRITES
        rwlock = player.client.rwlock("settings", owner=player.name)
        side = rwlock.write() if write else rwlock.read()
        began = time.monotonic()
        hold = side.acquire(timeout=PATIENCE_S)
        if hold is None:
            return None
        turn = Turn.since(began)
        fences = {rwlock.name: hold.fence}
        if write:
            self._write(player, fences)
            rwlock.write().downgrade()
        else:
            self.evidence.note(who=player.name, fences=fences, amount=1)
        saw = self._read(player)
        self.evidence.note(who=player.name, fences=fences, amount=0, saw=saw)
        hold.release()
        return turn

    def _write(self, player: Player, fences: dict[str, int]) -> None:
        self.evidence.note(who=player.name, fences=fences, amount=WHOLE)
        version = self._version("left") + 1
        for side in ("left", "right"):
            player.work()
            (self.folder / f"settings.{side}").write_text(str(version), encoding="ascii")
        self.evidence.note(who=player.name, fences=fences, amount=1, wrote=version)

    def _read(self, player: Player) -> tuple[int, int]:
        left = self._version("left")
        player.work()
        return left, self._version("right")

    def _version(self, side: str) -> int:
        try:
            return int((self.folder / f"settings.{side}").read_text(encoding="ascii") or 0)
        except FileNotFoundError:
            return 0

    @staticmethod
    def problems(records: Sequence[Record]) -> list[str]:
        return [
            *beyond_capacity(records, WHOLE),
            *unordered_fences(records, WHOLE),
            *half_written(records),
        ]


def half_written(records: Sequence[Record]) -> list[str]:
    """Return a text for each reader that did not see the state of the last writer.

    A writer that was killed may have written only a part. Then the state is unknown until the next
    writer has finished.
    """
    problems: list[str] = []
    version: int | None = 0
    writes = ""
    for record in records:
        if record.get("dead", ".") == writes:
            version, writes = None, ""
        if record.get("amount") == WHOLE:
            writes = record["who"]
        if "wrote" in record:
            if version is not None and record["wrote"] != version + 1:
                problems.append(f"{record['who']} wrote {record['wrote']} after {version}")
            version, writes = record["wrote"], ""
        if version is not None and record.get("saw", [version] * 2) != [version] * 2:
            problems.append(f"{record['who']} saw {record['saw']}, but {version} was written")
    return problems


class LockAllContest(LockContest):
    """Accounts, each under its own lock. A transfer needs two of them, an audit one."""

    kind = "lock_all"
    promise = "both locks or none, no lost updates, no lost money, rising fences"
    names = ("ann", "ben", "cat")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.balances = dict.fromkeys(self.names, BALANCE)

    def play(self, player: Player) -> Turn | None:
        if player.chance.random() < AUDITS:
            return super().play(player)
        pair = player.chance.sample(self.names, 2)
        began = time.monotonic()
        hold = player.client.lock_all(*pair).acquire(timeout=PATIENCE_S)
        if hold is None:
            return None
        turn = Turn.since(began)
        self.use(player, hold.fences)
        hold.release()
        return turn

    def learn(self, record: Record) -> None:
        super().learn(record)
        self.balances |= record.get("balances", {})

    def changed(self, names: tuple[str, ...]) -> Record:
        first, last = names[0], names[-1]
        balances = {name: self.balances[name] for name in names}
        balances[first] -= 1
        balances[last] += 1
        return {**super().changed(names), "balances": balances}

    @staticmethod
    def problems(records: Sequence[Record]) -> list[str]:
        return [*LockContest.problems(records), *lost_money(records)]


def lost_money(records: Sequence[Record]) -> list[str]:
    """Return a text for each record that changes the sum of all accounts."""
    balances = dict.fromkeys(LockAllContest.names, BALANCE)
    problems: list[str] = []
    for record in records:
        before = sum(balances.values())
        balances |= record.get("balances", {})
        if sum(balances.values()) != before:
            problems.append(f"{record['who']} left {balances}, but their sum was {before}")
    return problems


class ElectionContest(Contest):
    """A scheduler. Each player leads at times, and watches the election."""

    kind = "election"
    promise = "one leader at a time, rising fences, watches see each term in order"
    names = ("election:scheduler",)

    def begin(self, player: Player) -> None:
        threading.Thread(target=self._follow, args=(player,), daemon=True).start()

    def _follow(self, player: Player) -> None:
        watch = player.client.election("scheduler").watch()
        with suppress(fencelock.ClosedError):
            for leader in watch:
                if leader is not None:
                    seen = [leader.value, leader.fence]
                    self.evidence.note(watcher=player.name, saw=seen, resyncs=watch.resyncs)

    def play(self, player: Player) -> Turn | None:
        election = player.client.election("scheduler")
        began = time.monotonic()
        term = election.lead(player.name).acquire(timeout=PATIENCE_S)
        if term is None:
            return None
        turn = Turn.since(began)
        fences = {"scheduler": term.fence}
        self.evidence.note(who=player.name, fences=fences, amount=1)
        player.work()
        leader = election.leader()
        known = None if leader is None else [leader.value, leader.fence]
        self.evidence.note(who=player.name, fences=fences, amount=0, known=known)
        term.release()
        return turn

    @staticmethod
    def problems(records: Sequence[Record]) -> list[str]:
        return [
            *beyond_capacity(records, 1),
            *unordered_fences(records, 1),
            *wrong_leaders(records),
            *unseen_terms(records),
        ]


def wrong_leaders(records: Sequence[Record]) -> list[str]:
    """Return a text for each leader to which the cluster reported another leader."""
    return [
        f"{record['who']} leads under {record['fences']['scheduler']}, but read {record['known']}"
        for record in records
        if "known" in record
        if record["known"] != [record["who"], record["fences"]["scheduler"]]
    ]


def unseen_terms(records: Sequence[Record]) -> list[str]:
    """Return a text for each watch that did not see each term once, in the order of the fences.

    A term may have ended before its leader wrote a line. Then it is known from other watches.
    """
    seen: dict[str, list[int]] = defaultdict(list)
    terms: dict[int, str] = {}
    problems: list[str] = []
    for record in records:
        if "watcher" in record:
            value, fence = record["saw"]
            seen[record["watcher"]].append(fence)
            if record["resyncs"]:
                problems.append(f"{record['watcher']} was too far behind")
        else:
            value, fence = record.get("who", ""), record.get("fences", {}).get("scheduler", 0)
        if fence and terms.setdefault(fence, value) != value:
            problems.append(f"fence {fence} belongs to {terms[fence]} and to {value}")
    for watcher, fences in seen.items():
        there = [fence for fence in sorted(terms) if fences[0] <= fence <= fences[-1]]
        if fences != there:
            wrong = sorted(set(there) ^ set(fences)) or fences
            problems.append(f"{watcher} missed, repeated or reordered terms: {wrong[:5]}")
    return problems if seen or not terms else [*problems, "no player watched"]


class MapContest(Contest):
    """Counters in a map. Each player reads one, and replaces it if no other player was faster."""

    kind = "map"
    promise = "each update once, no stale reads, watches see each change in order"
    names = ("map:counters",)
    keys = ("red", "blue")

    def begin(self, player: Player) -> None:
        threading.Thread(target=self._follow, args=(player,), daemon=True).start()

    def _follow(self, player: Player) -> None:
        with suppress(fencelock.ClosedError):
            for seen in player.client.map("counters").watch():
                if isinstance(seen, fencelock.MapListing):
                    listed = {one.key: int(one.value or 0) for one in seen.entries}
                    self.evidence.note(watcher=player.name, lists=listed)
                else:
                    value = int(seen.value or 0)
                    self.evidence.note(watcher=player.name, sees=seen.key, value=value)

    def play(self, player: Player) -> Turn | None:
        counters = player.client.map("counters")
        key = player.chance.choice(self.keys)
        ends = time.monotonic() + PATIENCE_S
        while (began := time.monotonic()) < ends:
            self.evidence.note(who=player.name, reads=key)
            entry = counters.get(key)
            before, count = (0, 0) if entry is None else (entry.version, int(entry.value))
            self.evidence.note(who=player.name, tries=key, before=before, count=count + 1)
            value = str(count + 1).encode()
            try:
                if entry is None:
                    version = counters.put_if_absent(key, value)
                else:
                    version = counters.replace(key, value, version=before)
            except fencelock.VersionMismatchError:
                version = None
            self.evidence.note(who=player.name, key=key, version=version)
            if version is not None:
                return Turn.since(began)
        return None

    @staticmethod
    def rounds(records: Sequence[Record]) -> int:
        return sum(record.get("version") is not None for record in records)

    @staticmethod
    def problems(records: Sequence[Record]) -> list[str]:
        return [*old_reads(records), *broken_chains(records), *unseen_changes(records)]


def old_reads(records: Sequence[Record]) -> list[str]:
    """Return a text for each read of a state that was stale when the read began."""
    newest: dict[str, int] = defaultdict(int)
    floors: dict[str, int] = {}
    problems: list[str] = []
    for record in records:
        match record:
            case {"reads": key, "who": who}:
                floors[who] = newest[key]
            case {"tries": key, "who": who, "before": before} if before < floors[who]:
                problems.append(f"{who} read version {before} of {key} after {floors[who]}")
            case {"key": key, "version": int(version)}:
                newest[key] = max(newest[key], version)
            case _:
                pass
    return problems


class Change(NamedTuple):
    """A change of a counter from one version to the next. The next is None if the client died."""

    who: str
    before: int
    value: int
    version: int | None


def broken_chains(records: Sequence[Record]) -> list[str]:
    """Return a text for each counter whose changes are not one chain of versions.

    A client that was killed may have made the last change that it tried.
    """
    tried: dict[str, Record] = {}
    changes: dict[str, list[Change]] = defaultdict(list)
    for record in records:
        who = record.get("who") or record.get("dead") or ""
        if "tries" in record:
            tried[who] = record
        elif "reads" not in record and who in tried:
            last = tried.pop(who)
            version = record.get("version")
            if version is not None or "dead" in record:
                change = Change(who, last["before"], last["count"], version)
                changes[last["tries"]].append(change)
    return [problem for key in sorted(changes) for problem in _breaks(key, changes[key])]


def _breaks(key: str, changes: list[Change]) -> Iterator[str]:
    version, value = 0, 0
    unknown = [change for change in changes if change.version is None]
    known = [change for change in changes if change.version is not None]
    for change in sorted(known, key=lambda change: change.version or 0):
        died = any(one.before == version and one.value == value + 1 for one in unknown)
        if change.before != version and died and change.before > version:
            version, value = change.before, value + 1
        if (change.before, change.value) != (version, value + 1):
            yield (
                f"{key}: {change.who} changed version {change.before} to value {change.value}, "
                f"but it was version {version}, value {value}"
            )
        version, value = change.version or 0, change.value


def unseen_changes(records: Sequence[Record]) -> list[str]:
    """Return a text for each change that a watch missed or saw twice.

    Each change adds 1 to a counter.
    """
    known: dict[str, dict[str, int]] = {}
    problems: list[str] = []
    for record in records:
        match record:
            case {"watcher": who, "lists": listed}:
                if who in known:
                    problems.append(f"{who} was too far behind")
                known[who] = dict(listed)
            case {"watcher": who, "sees": key, "value": value}:
                before = known[who].get(key, 0)
                if value != before + 1:
                    problems.append(f"{who} saw {key} become {value} after {before}")
                known[who][key] = value
            case _:
                pass
    changed = any(record.get("version") is not None for record in records)
    return problems if known or not changed else [*problems, "no player watched"]


class CounterContest(Contest):
    """Numbers of orders. Each player draws the next one, and reads the counter."""

    kind = "counter"
    promise = "each number is drawn once, no stale reads"
    names = ("counter:orders",)

    def play(self, player: Player) -> Turn | None:
        orders = player.client.counter("orders")
        began = time.monotonic()
        self.evidence.note(who=player.name, draws=True)
        number = orders.add()
        turn = Turn.since(began)
        player.work()
        self.evidence.note(who=player.name, number=number, read=orders.get())
        return turn

    @staticmethod
    def rounds(records: Sequence[Record]) -> int:
        return sum("number" in record for record in records)

    @staticmethod
    def problems(records: Sequence[Record]) -> list[str]:
        return misnumbered(records)


def misnumbered(records: Sequence[Record]) -> list[str]:
    """Return a text for each number that was drawn twice or too high, and for each stale read.

    A client that was killed may have drawn a number without writing a line.
    """
    drawn: dict[int, str] = {}
    begun, highest, problems = 0, 0, list[str]()
    for record in records:
        begun += "draws" in record
        if "number" not in record:
            continue
        who, number, read = record["who"], record["number"], record["read"]
        if number in drawn:
            problems.append(f"{who} drew number {number}, which {drawn[number]} had")
        if not 1 <= number <= begun:
            problems.append(f"{who} drew number {number} of {begun}")
        if read < number:
            problems.append(f"{who} read {read} after it drew number {number}")
        drawn[number], highest = who, max(highest, number, read)
    if highest > begun:
        problems.append(f"the counter was {highest} after {begun} draws")
    return problems


class LatchContest(Contest):
    """Rounds with a latch each. Players count it down, and wait until enough have done so."""

    kind = "latch"
    promise = f"no player passes before {COUNT} have counted down, each counts once"
    names = ("latch:round-1",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.round = 1

    def play(self, player: Player) -> Turn | None:
        for record in self.evidence.news():
            if record.get("passed"):
                self.round = max(self.round, record["round"] + 1)
        facts: Record = {"who": player.name, "round": self.round}
        latch = player.client.latch(f"round-{self.round}", count=COUNT)
        began = time.monotonic()
        self.evidence.note(counts=True, **facts)
        left = latch.count_down()
        self.evidence.note(left=left, **facts)
        passed = latch.wait(timeout=PATIENCE_S)
        self.evidence.note(passed=passed, **facts)
        return Turn.since(began) if passed else None

    @staticmethod
    def rounds(records: Sequence[Record]) -> int:
        return sum(record.get("passed", False) for record in records)

    @staticmethod
    def problems(records: Sequence[Record]) -> list[str]:
        return miscounted(records)


def miscounted(records: Sequence[Record]) -> list[str]:
    """Return a text for each latch that opened too early or not at all, or had a wrong count.

    A client that was killed may have counted down without writing a line.
    """
    begun: dict[int, int] = defaultdict(int)
    counted: dict[int, int] = defaultdict(int)
    shut: dict[tuple[str, int], bool] = {}
    problems: list[str] = []
    for record in records:
        number, who = record.get("round", 0), record.get("who", "")
        if "counts" in record:
            begun[number] += 1
        elif "left" in record:
            counted[number] += 1
            least = max(0, COUNT - begun[number])
            if not least <= record["left"] <= max(0, COUNT - 1):
                problems.append(
                    f"round {number}: {who} got count {record['left']} of {COUNT} after "
                    f"{begun[number]} count-downs"
                )
            shut[who, number] = counted[number] < COUNT
        elif record.get("passed") and begun[number] < COUNT:
            problems.append(f"round {number}: {who} passed after {begun[number]} count-downs")
        elif record.get("passed") is False and not shut[who, number]:
            problems.append(f"round {number}: {who} timed out after {COUNT} count-downs")
    return problems


class BarrierContest(Contest):
    """Meetings. Players wait for each other, and pass together."""

    kind = "barrier"
    promise = f"no player passes before {COUNT} have arrived, each place is given once"
    names = ("barrier:meeting",)

    def play(self, player: Player) -> Turn | None:
        barrier = player.client.barrier("meeting", parties=COUNT)
        began = time.monotonic()
        self.evidence.note(who=player.name, comes=True)
        try:
            place = barrier.wait(timeout=MEETING_S)
        except fencelock.BrokenBarrierError:
            self.evidence.note(who=player.name, place=None)
            return None
        self.evidence.note(who=player.name, place=place)
        return Turn.since(began)

    @staticmethod
    def rounds(records: Sequence[Record]) -> int:
        return sum(record.get("place") is not None for record in records)

    @staticmethod
    def problems(records: Sequence[Record]) -> list[str]:
        return badly_met(records)


def badly_met(records: Sequence[Record]) -> list[str]:
    """Return a text for each player that passed too early, and for places that were given twice.

    A player whose generation broke does not count. A player that was killed may count.
    """
    came, passed, unknown = 0, 0, 0
    waiting: dict[str, int] = {}
    left = set(_left(records))
    places: dict[int, int] = dict.fromkeys(range(COUNT), 0)
    problems: list[str] = []
    for number, record in enumerate(records):
        who = record.get("who") or record.get("dead") or ""
        if "comes" in record:
            waiting[who] = number
            came += number not in left
        elif "dead" in record:
            unknown += waiting.pop(who, None) is not None
        else:
            waiting.pop(who, None)
        if record.get("place") is None:
            continue
        passed += 1
        places[record["place"]] = places.get(record["place"], 0) + 1
        if passed > came - came % COUNT:
            problems.append(f"{who} passed as number {passed} after {came} arrivals")
    if max(places.values()) - min(places.values()) > unknown + len(waiting):
        problems.append(f"the {COUNT} places were given unevenly: {places}")
    return problems


def _left(records: Sequence[Record]) -> Iterator[int]:
    """Yield the numbers of the lines of arrivals whose generation broke."""
    came: dict[str, int] = {}
    for number, record in enumerate(records):
        if "comes" in record:
            came[record["who"]] = number
        elif "place" in record and record["place"] is None:
            yield came[record["who"]]


CONTESTS: tuple[type[Contest], ...] = (
    LockContest,
    SemaphoreContest,
    ReadWriteContest,
    LockAllContest,
    ElectionContest,
    MapContest,
    LatchContest,
    BarrierContest,
    CounterContest,
)
