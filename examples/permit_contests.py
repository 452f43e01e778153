"""Contests for objects that clients hold: locks, semaphores, read/write locks, several locks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from contest import PATIENCE_S, Contest, Player, Turn
from evidence import WHOLE, Record, beyond_capacity, lost_updates, unordered_fences

PERMITS = 3
WRITES = 0.3
"""Share of the turns of a read/write lock that write."""
AUDITS = 0.3
"""Share of the turns with accounts that need only one account."""
BALANCE = 100
"""The initial balance of each account."""


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
