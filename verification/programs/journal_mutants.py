"""Mutants of a node's journal: each is refused with a clear text, or recovers without damage.

    python verification/programs/journal_mutants.py                  # 500 mutants
    python verification/programs/journal_mutants.py --mutants 5000 --seed 7

A mutant is a copy of a journal with flipped bits, a cut file, zeros, a repeated or swapped piece,
or with records that no honest member writes. A verdict is one of

``refused``
    The journal cannot be opened, and the text names what to do.
``repairable``
    It has votes that no honest member can have; a node does not start with it, and they are found.
``a prefix``
    Its records are the first of the original ones, as after a crash before the last sync. A file
    that was cut off at its end cannot be told from that.
``whole``
    Its records are the original ones.

Everything else is damage that was accepted, or an exception: it is printed, and the status is 1.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

from beside import options_of

from fencelock.actors.message import Address, Message
from fencelock.actors.paxos.journal import find_impossible, recover, why_unusable
from fencelock.actors.paxos.wire import Accept, Ballot, Batch, Pledge, Pledged
from fencelock.cluster.node.storage.directory import StorageError
from fencelock.cluster.node.storage.journal import Journal
from fencelock.transport.codec import decode, encode

LEADER = Address("n1/leader")
SLOTS = 120
STREAM = "acceptor"
Records = dict[str, list[bytes]]


def make_journal(folder: Path) -> Records:
    journal = Journal.open(folder, segment_bytes_max=4_096)
    ballot = Ballot(3, LEADER)
    journal.append([(STREAM, encode(Pledged(pledge=Pledge.PROMISED, ballot=ballot)))])
    journal.sync()
    for slot in range(1, SLOTS + 1):
        batch = Batch(time_ms=slot, commands=(b"x" * (slot % 90),))
        vote = Accept(ballot=ballot, slot=slot, batch=batch, committed=max(1, slot - 3))
        journal.append([(STREAM, encode(vote))])
        journal.sync()
    journal.close()
    return read(folder)


def read(folder: Path) -> Records:
    journal = Journal.open(folder)
    try:
        return journal.take_records()
    finally:
        journal.close()


def mutate(folder: Path, random: Random) -> str:
    """Change the journal in ``folder`` somewhere; return how."""
    kind = random.choice(("bits", "cut", "zeros", "repeat", "swap", "slot", "time"))
    if kind in ("slot", "time"):
        slot = SLOTS + (random.choice((30_000, 200_000, 1 << 61)) if kind == "slot" else 1)
        time_ms = (1 << 62) - 1 if kind == "time" else 0
        batch = Batch(time_ms=time_ms, commands=())
        vote = Accept(ballot=Ballot(3, LEADER), slot=slot, batch=batch, committed=SLOTS - 3)
        journal = Journal.open(folder)
        journal.append([(STREAM, encode(vote))])
        journal.sync()
        journal.close()
        return kind
    path = random.choice(sorted(one for one in folder.iterdir() if one.stat().st_size > 64))
    content = bytearray(path.read_bytes())
    at, size = random.randrange(len(content)), random.randrange(1, 64)
    match kind:
        case "bits":
            for _ in range(random.choice((1, 1, 1, 8))):
                content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        case "cut":
            del content[at:]
        case "zeros":
            content[at : at + size] = bytes(len(content[at : at + size]))
        case "repeat":
            content[at:at] = content[at : at + size]
        case _:
            other = random.randrange(len(content))
            piece = content[at : at + size]
            content[other : other + len(piece)] = piece
    path.write_bytes(content)
    return kind


def verdict_on(folder: Path, whole: Records) -> str:
    try:
        found = read(folder)
    except StorageError as error:
        return "refused" if str(folder) in str(error) else f"DAMAGE: the text is {error}"
    votes: list[Message] = [decode(one) for of in found.values() for one in of]
    if why_unusable(votes):
        return "refused"
    if find_impossible(votes):
        return "repairable"
    recover(votes)
    original, records = whole[STREAM], found.get(STREAM, [])
    if records == original:
        return "whole"
    if records == original[: len(records)]:
        return "a prefix"
    return "DAMAGE: records that were never written"


def judge(mutants: int, seed: int) -> Counter[tuple[str, str]]:
    verdicts: Counter[tuple[str, str]] = Counter()
    with tempfile.TemporaryDirectory() as name:
        base, copy = Path(name) / "journal", Path(name) / "mutant"
        whole = make_journal(base)
        for number in range(mutants):
            shutil.copytree(base, copy)
            kind = mutate(copy, Random(f"{seed}/{number}"))
            verdicts[kind, verdict_on(copy, whole)] += 1
            shutil.rmtree(copy)
    return verdicts


def main() -> int:
    numbers = {"mutants": (500, "their number"), "seed": (1, "of all that is drawn")}
    given = options_of(__doc__, has_json=False, **numbers)
    verdicts = judge(given.mutants, given.seed)
    for (kind, verdict), count in sorted(verdicts.items()):
        print(f"{count:6} {kind:7} {verdict}")
    return int(any(verdict.startswith("DAMAGE") for _, verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
