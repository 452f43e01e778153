"""Fuzz real nodes and every entry point of a node; exit 1 if a node exits, stalls or raises.

Live frames go to three nodes on loopback as fast as these take them: all variants of all messages
first, each with one field at one extreme, then messages drawn at random. Meanwhile a client
acquires and releases a lock. A pair that takes longer than 0.2 s is a stall. Keys: ``none``
(clients without keys, then a member that anybody can pose as), ``client``, ``operator``, ``node``.

Offline inputs go to the same code without sockets: frames, roles of each protocol in virtual time,
commands of the log, snapshots, segments and records of journals.

Usage::

    python verification/programs/fuzz.py --live 500000 --offline 1000000 [--seed 1]
        [--key none --key node] [--protocol paxos]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from support.fuzz_live import STALL_S, LiveFuzzer, LiveReport, Prober
from support.fuzz_offline import (
    Composer,
    OfflineFuzzer,
    member_messages,
    messages,
    requests,
    variants_of,
)
from support.real_nodes import KeyedProcesses

from fencelock.actors.message import Message
from fencelock.cluster.node.topology import PROTOCOLS
from fencelock.verification.bench.members import NodeProcesses

KEYS = {"none": "", "client": "shop", "operator": "alice", "node": "n3"}
"""The kinds of keys, with the name of the key."""


def endless(kinds: list[type[Message]], seed: int, session: str) -> Iterator[Message]:
    """Yield all variants of ``kinds``, then messages drawn at random, without end."""
    values = {"session": session, "lock": "orders/a", "owner": "o", "ttl_ms": 60_000, "most": 100}
    yield from variants_of(kinds, values)
    random, composer = Random(seed), Composer(values)
    while True:
        yield composer.drawn(random.choice(kinds), random)


def live(protocol: str, key: str, frames: int, seed: int, folder: Path) -> LiveReport:
    with ExitStack() as stack:
        kind = NodeProcesses if key == "none" else KeyedProcesses
        members = stack.enter_context(kind(folder, protocol, 3, durable=True))
        client = stack.enter_context(members.ready_client())
        fuzzer = LiveFuzzer(members, None if key == "none" else folder / "keys")
        began = time.monotonic()
        with Prober(client, fuzzer.report):
            name = KEYS[key]
            if key != "node":
                most = frames // 3 // (2 if key == "none" else 1)
                fuzzer.clients(islice(endless(list(requests()), seed, ""), most), name)
            if key in ("none", "node"):
                most = frames // 2 // (2 if key == "none" else 1)
                given = endless(messages(), seed, "me.1")
                fuzzer.peers("n3", islice(member_messages(protocol, given, seed), most))
        fuzzer.report.seconds = time.monotonic() - began
        return fuzzer.finish(client)


def report_live(title: str, report: LiveReport) -> bool:
    rate = report.frames / max(report.seconds, 0.001)
    stalls = ", ".join(f"{one:.2f}" for one in sorted(report.stalls, reverse=True)[:5])
    print(
        f"{title:24} {report.frames:9,} frames {rate:8,.0f}/s  "
        f"exits {len(report.exits)}  faults {len(report.faults)}  "
        f"stalls above {STALL_S} s: {len(report.stalls)} ({stalls}) of "
        f"{report.probes}  unanswered {len(report.unanswered)}",
        flush=True,
    )
    shown = [f"{name} {times:,}" for name, times in report.counters.most_common(12)]
    print(f"    {', '.join(shown)}", flush=True)
    for node, text in report.exits.items():
        print(f"--- {node} exited:\n{text}")
    for line in (*report.faults[:5], *report.unanswered[:5]):
        print(f"--- {line}")
    return not (report.exits or report.stalls or report.faults or report.unanswered)


def offline(inputs: int, seed: int, protocols: list[str]) -> bool:
    fuzzer = OfflineFuzzer(seed)
    share = inputs // 16
    parts: list[tuple[str, Callable[[], object]]] = [
        ("frames", lambda: fuzzer.frames(2 * share)),
        ("commands of the log", lambda: fuzzer.commands(3 * share)),
        ("snapshots", lambda: fuzzer.snapshots(share)),
        ("journals", lambda: fuzzer.records(2 * share)),
    ]
    for protocol in protocols:
        each = 8 * share // len(protocols) // 2
        for peers in (False, True):
            who = "peers" if peers else "clients"
            parts.append(
                (
                    f"{protocol}, {who}",
                    lambda protocol=protocol, each=each, peers=peers: fuzzer.roles(  # type: ignore[misc]
                        protocol, None, each, peers=peers
                    ),
                )
            )
    for title, part in parts:
        began, before = time.monotonic(), fuzzer.findings.inputs
        part()
        count, took = fuzzer.findings.inputs - before, time.monotonic() - began
        found = len(fuzzer.findings.by_place)
        print(f"{title:24} {count:9,} inputs {count / took:8,.0f}/s  found {found}", flush=True)
    if fuzzer.findings.by_place:
        print(fuzzer.findings)
    return not fuzzer.findings.by_place


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--live", type=int, default=20_000, help="frames for each kind of key")
    parser.add_argument("--offline", type=int, default=100_000, help="inputs in all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--key", action="append", choices=list(KEYS), help="default: all kinds")
    parser.add_argument(
        "--protocol", action="append", choices=PROTOCOLS, help="default: all; live: paxos"
    )
    arguments = parser.parse_args()
    sound = True
    if arguments.offline:
        sound &= offline(arguments.offline, arguments.seed, arguments.protocol or list(PROTOCOLS))
    if arguments.live:
        for protocol in arguments.protocol or ["paxos"]:
            for key in arguments.key or KEYS:
                with tempfile.TemporaryDirectory() as folder:
                    report = live(protocol, key, arguments.live, arguments.seed, Path(folder))
                sound &= report_live(f"{protocol}, key {key}", report)
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
