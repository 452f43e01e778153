"""Watchers on real processes: nodes are killed, clients are killed or paused."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Event
from typing import Any

import pytest
from support.programs import Child
from support.real_nodes import PaxosProcesses

import fencelock
from fencelock.actors.table.history import CHANGES_MAX
from fencelock.verification.bench.members import leader_among

PATIENCE_S = 90
KILLS = 2
TERMS_BETWEEN_KILLS = 20
END = "end"

WATCHER = """
import json, sys
import fencelock
watch = fencelock.connect(sys.argv[1]).election("s").watch()
for leader in watch:
    print(json.dumps([watch.resyncs, leader]), flush=True)
"""

LEADER = """
import sys
import fencelock
client = fencelock.connect(sys.argv[1], ttl=1)
term = client.election("s").lead("killed").acquire()
print(term.fence, flush=True)
sys.stdin.read()
"""


def lead_until(client: fencelock.Client, name: str, over: Event, led: list[int]) -> None:
    """Lead again and again, and add the fence of each term to ``led``."""
    election = client.election("s")
    while not over.is_set():
        with election.lead(f"{name}/{len(led)}") as term:
            led.append(term.fence)


def watch_until_end(client: fencelock.Client, began: Event) -> tuple[list[Any], int]:
    """Return the items of a watch up to the leader with the value `END`, and its resyncs."""
    watch, seen = client.election("s").watch(), list[Any]()
    for leader in watch:
        began.set()
        seen.append(leader)
        if leader is not None and leader.value == END:
            break
    return seen, watch.resyncs


@pytest.mark.long
def test_watchers_see_every_change_once_while_nodes_are_killed(members: PaxosProcesses) -> None:
    chance = Random(7)
    over, led = Event(), (list[int](), list[int]())
    with (
        members.ready_client() as one,
        members.ready_client() as two,
        members.ready_client() as onlooker,
        ThreadPoolExecutor() as threads,
    ):
        began = [Event(), Event()]
        watchers = [
            threads.submit(watch_until_end, client, event)
            for client, event in zip((one, onlooker), began, strict=True)
        ]
        assert all(event.wait(PATIENCE_S) for event in began)
        leaders = [
            threads.submit(lead_until, client, name, over, terms)
            for client, name, terms in zip((one, two), "ab", led, strict=True)
        ]
        try:
            for kill in range(KILLS):
                statuses = members.wait_until_ready(onlooker)
                leading = leader_among(statuses)
                victim = leading if kill % 2 else chance.choice(members.names)
                members.kill(victim)
                count = len(led[0]) + TERMS_BETWEEN_KILLS
                while len(led[0]) < count and not any(one.done() for one in leaders):
                    Event().wait(0.01)
                members.start(victim)
        finally:
            over.set()
        for leader in leaders:
            leader.result(PATIENCE_S)
        with two.election("s").lead(END) as term:
            fences = sorted([*led[0], *led[1], term.fence])
        for watcher in watchers:
            seen, resyncs = watcher.result(PATIENCE_S)
            assert resyncs == 0
            assert seen[0] is None
            assert seen[2::2] == [None] * (len(seen[1:]) // 2)
            values = {leader.fence: leader.value for leader in seen[1::2]}
            assert [leader.fence for leader in seen[1::2]] == fences
            for name, terms in zip("ab", led, strict=True):
                assert [values[fence] for fence in terms] == [
                    f"{name}/{number}" for number in range(len(terms))
                ]
    print(f"{len(fences)} terms, {KILLS} kills")


def test_watchers_of_a_map_see_each_change_once_as_nodes_die(members: PaxosProcesses) -> None:
    over, put = Event(), list[fencelock.MapChange]()

    def put_until(client: fencelock.Client) -> None:
        kv = client.map("m")
        while not over.is_set():
            key, value = f"k{len(put) % 5}", b"%d" % len(put)
            put.append(fencelock.MapChange(key, value, kv.put(key, value)))
        put.append(fencelock.MapChange(END, b"", kv.put(END, b"")))

    def watch(client: fencelock.Client) -> list[Any]:
        seen, changes = list[Any](), client.map("m").watch()
        while not seen or seen[-1][0] != END:
            seen.append(changes.get(PATIENCE_S))
        assert changes.resyncs == 0
        return seen

    with (
        members.ready_client() as one,
        members.ready_client() as onlooker,
        ThreadPoolExecutor() as threads,
    ):
        watchers = [threads.submit(watch, client) for client in (one, onlooker)]
        writer = threads.submit(put_until, one)
        try:
            for _ in range(KILLS):
                victim = leader_among(members.wait_until_ready(onlooker))
                members.kill(victim)
                count = len(put) + TERMS_BETWEEN_KILLS
                while len(put) < count and not writer.done():
                    Event().wait(0.01)
                members.start(victim)
        finally:
            over.set()
        writer.result(PATIENCE_S)
        for watcher in watchers:
            listing, *changes = watcher.result(PATIENCE_S)
            listed = {entry.key: entry.version for entry in listing.entries}
            assert all(version <= listing.version for version in listed.values())
            assert changes == [one for one in put if one.version > listing.version]
        first = put[0].version
        assert [one.version for one in put] == [*range(first, first + len(put))]


@pytest.mark.long
def test_a_watcher_paused_for_long_begins_anew_with_the_leader(members: PaxosProcesses) -> None:
    with members.ready_client() as client, Child("-c", WATCHER, members.connect) as watcher:
        try:
            assert json.loads(watcher.line()) == [0, None]
            watcher.send_signal(signal.SIGSTOP)
            election = client.election("s")
            for _ in range(CHANGES_MAX // 2 + 100):  # The paused watcher misses most.
                with election.lead("meanwhile"):
                    pass
            with election.lead("present") as term:
                watcher.send_signal(signal.SIGCONT)
                lines = [json.loads(watcher.line())]
                while lines[-1] != [1, ["present", term.fence]]:
                    lines.append(json.loads(watcher.line()))
                assert len(lines) < CHANGES_MAX
            assert json.loads(watcher.line()) == [1, None]
        finally:
            watcher.kill()


def test_watchers_learn_that_a_killed_leader_leads_no_more(members: PaxosProcesses) -> None:
    with members.ready_client() as client:
        watch = client.election("s").watch()
        assert next(watch) is None
        with Child("-c", LEADER, members.connect) as leader:
            fence = int(leader.line())
            assert watch.get(PATIENCE_S) == fencelock.Leader("killed", fence)
            leader.kill()
        assert watch.get(PATIENCE_S) is None
        with client.election("s").lead("next") as term:
            assert watch.get(PATIENCE_S) == fencelock.Leader("next", term.fence)
            assert term.fence > fence
