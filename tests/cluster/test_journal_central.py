"""The journal of `central`'s lock server: it stays bounded, and the server continues from it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from support.dispatchers import hub_without_peers
from support.effects import HOST, T0

from fencelock.actors.central.message import Freed, Held, Numbered, Probe, Release, Request
from fencelock.actors.central.server import RECORDS_MAX, LockServer
from fencelock.actors.effect import Checkpoint, Effects, Persist, Spawn
from fencelock.actors.message import Address, Message, address_of
from fencelock.cluster.host.dispatcher import Dispatcher
from fencelock.cluster.host.role_set import RoleSet
from fencelock.cluster.node.config import Config
from fencelock.cluster.node.node import Node
from fencelock.cluster.node.storage.journal import Journal
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.cluster.testing.ports import free_ports
from fencelock.transport.codec import decode

LONG_S = 60.0
SERVER = address_of("n1", "server")
CLIENT = Address("n1/clients-1-1")
GRANTS = 60_000
FOLDER_BYTES_MAX = 300 << 10
"""Far less than what is written for all grants."""


def request(lock: str) -> Request:
    return Request(lock=lock, client=CLIENT, session="s", owner="o")


def replayed(records: Sequence[Message]) -> LockServer:
    return LockServer(SERVER, HOST, journal=True, records=tuple(records))


def test_a_server_begins_its_journal_anew_with_its_count_and_its_table() -> None:
    server = replayed(())
    records: list[Message] = []
    longest = 0

    def keep(effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Checkpoint):
                records[:] = effect.records
            elif isinstance(effect, Persist):
                records.append(effect.record)

    for number in range(1, 2 * RECORDS_MAX):
        keep(server.handle(CLIENT, request(f"{number % 7}"), T0))
        if number % 7:
            last = server.held[f"{number % 7}"].number
            release = Release(lock=f"{number % 7}", client=CLIENT, sequence=last)
            keep(server.handle(CLIENT, release, T0))
        longest = max(longest, len(records))
        again = replayed(records)
        if number % 100 == 0:
            assert (again.granted, again.held) == (server.granted, server.held)
    assert RECORDS_MAX <= longest <= RECORDS_MAX + 2


def test_a_large_table_is_not_written_at_every_step() -> None:
    server = replayed(())
    written = anew = 0
    for number in range(20_000):
        for effect in server.handle(CLIENT, request(f"{number}"), T0):
            if isinstance(effect, Checkpoint):
                anew += 1
                written += len(effect.records)
    assert anew < 20
    assert written < 20_000


def test_the_first_record_of_a_journal_begun_anew_is_the_count_even_of_an_empty_table() -> None:
    server = replayed(())
    server.recorded = RECORDS_MAX - 1
    held, freed = (
        server.handle(CLIENT, request("l"), T0),
        server.handle(CLIENT, Release(lock="l", client=CLIENT, sequence=1), T0),
    )
    assert isinstance(held[0], Persist)
    assert Checkpoint((Numbered(number=1),)) in freed
    assert not any(isinstance(effect, Persist) for effect in freed)
    assert replayed([Numbered(number=1)]).granted == 1


def opened(folder: Path) -> Journal:
    # What is written, and room ahead for up to one segment more, stay below the bound.
    return Journal.open(folder, segment_bytes_max=FOLDER_BYTES_MAX // 3)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def test_many_grants_leave_a_folder_below_a_bound_and_a_restart_goes_on(tmp_path: Path) -> None:
    dispatcher = Dispatcher("n1", hub_without_peers(), journal=opened(tmp_path))
    dispatcher.start(RoleSet((Spawn(SERVER, LockServer, {"journal": True}),)))
    server = dispatcher.ref(SERVER)
    most = 0
    for number in range(1, GRANTS + 1):
        lock = f"orders/{number % 1_000}" if number % 1_000 else f"kept/{number}"
        server.tell(request(lock))
        if number % 1_000:
            server.tell(Release(lock=lock, client=CLIENT, sequence=number))
        else:
            server.ask(Probe(), timeout=LONG_S)  # Not more at once than a node lets in.
            most = max(most, size(tmp_path))
    assert dispatcher.stop(LONG_S)
    assert dispatcher.failure is None
    assert FOLDER_BYTES_MAX // 4 < most < FOLDER_BYTES_MAX
    began = time.monotonic()
    with closing(opened(tmp_path)) as journal:
        (records,) = journal.take_records().values()
    again = replayed([decode(record) for record in records])
    assert time.monotonic() - began < LONG_S
    assert again.granted == GRANTS
    assert list(again.held) == [f"kept/{number}" for number in range(1_000, GRANTS + 1, 1_000)]
    assert len(records) < 2 * RECORDS_MAX


def test_a_node_hands_its_server_its_journal(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    config = Config(
        cluster="c",
        protocol="central",
        nodes={"n1": f"tcp://127.0.0.1:{port}"},
        data=tmp_path,
        settings=ProtocolSettings(central_journal=True),
    )
    with closing(Journal.open(tmp_path / "n1")):
        pass
    with Node.start(config, "n1", found=True) as node:
        node.ref("server").tell(request("l"))
        node.ref("server").ask(Probe(), timeout=LONG_S)
    with closing(Journal.open(tmp_path / "n1")) as journal:
        found = journal.take_records()
    assert list(found) == ["identity", "server"]
    records = found["server"]
    (held,) = [decode(record) for record in records]
    assert isinstance(held, Held)
    with Node.start(config, "n1", found=True) as node:
        node.ref("server").tell(Release(lock="l", client=held.client, sequence=held.number))
        node.ref("server").ask(Probe(), timeout=LONG_S)
    with closing(Journal.open(tmp_path / "n1")) as journal:
        records = journal.take_records()["server"]
    assert [decode(record) for record in records] == [held, Freed(lock="l", number=held.number)]
