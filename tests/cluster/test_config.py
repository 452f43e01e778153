"""The configuration; the times in it fit together."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel
from support.programs import run_to_end

import fencelock
from fencelock.actors.api.role_request import LOG_LEVELS
from fencelock.actors.bakery.config import BakeryTiming
from fencelock.actors.error import ConfigError
from fencelock.actors.membership_target import MemberTarget
from fencelock.actors.message import Address
from fencelock.actors.paxos.wire import UNWILLING
from fencelock.actors.quota import Quotas
from fencelock.actors.session.endpoints import ENDPOINT_SILENCE_MS, Endpoints
from fencelock.actors.session.requests import FIRST_REPEAT_MS
from fencelock.actors.timing import (
    PROBE_AFTER_MS,
    REPLY_MS,
    ROUND_TRIP_MS,
    ROUND_TRIP_MS_MAX,
    TIMING,
    Timing,
    derived,
)
from fencelock.cluster.guarantee import PROMISES
from fencelock.cluster.node.config import (
    NODES_MAX,
    Config,
    File,
    load,
    loopback,
    parse,
    shared_from,
    starting_config,
    toml_of,
)
from fencelock.cluster.node.topology import ProtocolSettings
from fencelock.cluster.testing.ports import free_ports

HERE = Path("/somewhere")

WHOLE = """
cluster = "orders"
protocol = "central"
data = "./data"
[nodes.n2]
address = "tcp://10.0.0.2:4040"
[nodes.n1]
address = "tcp://node-1.example.org:4040"
[central]
server = "n2"
journal = true
[log]
level = "DEBUG"
"""

LEAST = """
cluster = "orders"
protocol = "central"
nodes.n1.address = "tcp://127.0.0.1:4041"
"""


def complaints(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse(text, HERE)
    return str(caught.value).splitlines()


def test_every_key_arrives() -> None:
    assert parse(WHOLE, HERE) == Config(
        cluster="orders",
        protocol="central",
        nodes={"n1": "tcp://node-1.example.org:4040", "n2": "tcp://10.0.0.2:4040"},
        settings=ProtocolSettings(central_server="n2", central_journal=True),
        data=HERE / "data",
        log_level="DEBUG",
    )


def test_optional_fields_have_defaults() -> None:
    assert parse(LEAST, HERE) == Config(
        cluster="orders", protocol="central", nodes={"n1": "tcp://127.0.0.1:4041"}
    )


def test_nodes_are_sorted_whatever_their_order_in_the_file() -> None:
    assert list(parse(WHOLE, HERE).nodes) == ["n1", "n2"]


def test_nodes_of_one_machine_keep_their_files_apart() -> None:
    assert parse(WHOLE, HERE).folder_of("n1") == HERE / "data" / "n1"
    assert parse(LEAST, HERE).folder_of("n1") is None


def test_a_configuration_does_not_change() -> None:
    config = parse(LEAST, HERE)
    with pytest.raises(AttributeError):
        config.cluster = "other"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def test_every_problem_is_reported_at_once_each_on_its_line() -> None:
    assert complaints(
        """
        cluster = "Orders"
        protocl = "lamport"
        protocol = "raft"
        data = 5
        [nodes.N1]
        address = "tcp://10.0.0.1:4040"
        [nodes.n2]
        address = "tcp:/x"
        [nodes.n3]
        adress = "tcp://10.0.0.3:4040"
        [central]
        journal = 1
        timeout = 3
        [log]
        level = "loud"
        """
    ) == [
        'cluster: "Orders" is not usable: a name of 1 to 64 of a-z, 0-9 and - like "orders" '
        "is expected",
        'protocol: "raft" is not usable: one of "bakery", "central", "lamport", "paxos" is '
        "expected",
        'data: 5 is not usable: a folder like "./data" is expected',
        'nodes.N1: "N1" is not usable: a table with an address, under an id of 1 to 32 of a-z, '
        '0-9 and - that begins with a letter or digit, like "n1" is expected',
        'nodes.n2.address: "tcp:/x" is not usable: an address the other nodes can reach like '
        '"tcp://10.0.0.1:4040", with a port up to 65535 (set listen beside it to bind to another, '
        'like "tcp://0.0.0.0:4040") is expected',
        "nodes.n3.address: missing; an address the other nodes can reach like "
        '"tcp://10.0.0.1:4040", with a port up to 65535 (set listen beside it to bind to another, '
        'like "tcp://0.0.0.0:4040") is expected',
        'nodes.n3.adress: not a known key; did you mean "address"?',
        "central.journal: 1 is not usable: true or false is expected",
        "central.timeout: not a known key; known here: server, journal",
        'log.level: "loud" is not usable: one of "TRACE", "DEBUG", "INFO", "WARNING", "ERROR" '
        "is expected",
        'protocl: not a known key; did you mean "protocol"?',
    ]


@pytest.mark.parametrize(
    "listen", ["tcp://0.0.0.0:4040", "tcp://*:4040", "tcp://[::]:4040", "tcp://10.0.0.9:1"]
)
def test_a_node_may_listen_elsewhere_than_it_is_reached(listen: str) -> None:
    nodes = f'[nodes.n1]\naddress = "tcp://a:4040"\nlisten = "{listen}"'
    more = '[nodes.n2]\naddress = "tcp://b:4040"'
    config = parse(f'cluster = "c"\nprotocol = "central"\n{nodes}\n{more}', Path())
    assert config.nodes == {"n1": "tcp://a:4040", "n2": "tcp://b:4040"}
    assert [config.listen_of(node) for node in config.nodes] == [listen, "tcp://b:4040"]


@pytest.mark.parametrize(
    "listen",
    ["0.0.0.0:4040", "tcp://0.0.0.0", "tcp://a:4040", "tcp://*:0", "tcp://*:65536"],
)
def test_an_address_at_which_a_node_cannot_listen_is_refused(listen: str) -> None:
    text = 'cluster = "c"\nprotocol = "paxos"\n[nodes.n1]\naddress = "tcp://a:4040"\n'
    assert complaints(f'{text}listen = "{listen}"') == [
        f'nodes.n1.listen: "{listen}" is not usable: an IP address of this machine, or *, to bind '
        'to, like "tcp://0.0.0.0:4040", with a port of 1 to 65535 (the others use address), is '
        "expected"
    ]


@pytest.mark.parametrize(
    ("table", "allowed"),
    [
        ('metrics = "127.0.0.1:65536"', "with a port up to 65535, is expected"),
        ('redis = "tcp://localhost:6379"', "an IP address of this machine, or *, for clients"),
        ('redis = "tcp://127.0.0.1:65536"', "with a port of 1 to 65535, is expected"),
    ],
)
def test_the_refusal_of_another_address_names_its_limits(table: str, allowed: str) -> None:
    text = 'cluster = "c"\nprotocol = "paxos"\n[nodes.n1]\naddress = "tcp://a:4040"\n'
    (line,) = complaints(text + table)
    assert line.startswith(f"nodes.n1.{table.partition(' ')[0]}: ")
    assert allowed in line


def test_a_wildcard_address_is_refused_with_the_hint_to_set_listen() -> None:
    text = 'cluster = "c"\nprotocol = "paxos"\n[nodes.n1]\naddress = "tcp://0.0.0.0:4040"'
    (line,) = complaints(text)
    assert "set listen beside it" in line


def test_nothing_at_all_names_what_is_needed() -> None:
    assert [line.partition(":")[0] for line in complaints("")] == ["cluster", "protocol", "nodes"]


def test_lamport_needs_two_nodes_and_the_refusal_gives_the_reason() -> None:
    (line,) = complaints(LEAST.replace("central", "lamport"))
    assert 'nodes: 1 is not usable: protocol "lamport" needs at least 2' in line
    assert "its fences live in the other nodes' clocks" in line


def test_two_nodes_with_one_address_are_refused() -> None:
    (line,) = complaints(LEAST + 'nodes.n2.address = "tcp://127.0.0.1:4041"')
    assert line.startswith('nodes.n2.address: "tcp://127.0.0.1:4041" is not usable: node n1 has it')


def test_a_server_that_is_no_node_is_refused_with_the_nodes_there_are() -> None:
    (line,) = complaints(LEAST + 'central.server = "n7"')
    assert line == 'central.server: "n7" is not usable: one of "n1" is expected'


def test_a_journal_needs_a_place() -> None:
    (line,) = complaints(LEAST + "central.journal = true")
    assert line == 'data: missing; central.journal = true needs a folder like "./data"'


@pytest.mark.parametrize(
    "address",
    [
        "",
        "10.0.0.1:4040",
        "tcp://10.0.0.1",
        "tcp://10.0.0.1:",
        "tcp://10.0.0.1:0",
        "tcp://10.0.0.1:65536",
        "tcp://:4040",
        "tcp://*:4040",
        "tcp://0.0.0.0:4040",
        "tcp://a b:4040",
        "tcp://a:4040/",
        "tcp://user@a:4040",
        "udp://a:4040",
        "ipc:///tmp/a",
        "tcp://a:4040\\n",
    ],
)
def test_an_unreachable_address_is_refused(address: str) -> None:
    (line,) = complaints(LEAST.replace("tcp://127.0.0.1:4041", address))
    assert line.startswith(f'nodes.n1.address: "{address}" is not usable: an address')


@pytest.mark.parametrize("host", ["localhost", "10.0.0.1", "n1.internal", "my_host-2"])
def test_hosts_by_name_and_by_number_are_fine(host: str) -> None:
    text = LEAST.replace("127.0.0.1", host)
    assert parse(text, HERE).nodes == {"n1": f"tcp://{host}:4041"}


@pytest.mark.parametrize("node", ["", "-n", "N1", "n_1", "n.1", "n/1", "n" * 33, "é"])
def test_a_node_id_out_of_its_limits_is_refused(node: str) -> None:
    lines = complaints(LEAST + f'nodes."{node}".address = "tcp://a:1"')
    assert any("a table with an address, under an id of 1 to 32" in line for line in lines)


def test_more_nodes_than_the_limit_are_refused() -> None:
    most = starting_config(loopback(NODES_MAX))
    assert len(parse(most, HERE).nodes) == NODES_MAX
    with pytest.raises(ConfigError, match=r"nodes: .* 1 to 64 tables like"):
        starting_config(loopback(NODES_MAX + 1))


@pytest.mark.parametrize("text", ["nodes = 3", "nodes.n1 = 3", "log = 3", "central = []"])
def test_a_value_where_a_table_belongs_is_refused(text: str) -> None:
    known = 'cluster = "a"\nprotocol = "central"\n'
    assert any(line.startswith(text.partition(" ")[0]) for line in complaints(known + text))


def test_a_syntax_error_is_reported_with_its_line() -> None:
    (line,) = complaints('cluster = "a"\nprotocol = lamport\n')
    assert line.startswith("not TOML: ")
    assert "line 2" in line


def test_the_error_of_a_missing_file_shows_how_to_make_one(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    with pytest.raises(ConfigError, match=re.escape(f"{path} does not exist")) as caught:
        load(path)
    assert f"fencelock init --nodes 3 --config {path}" in str(caught.value)


def test_a_folder_and_a_file_that_is_no_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)
    (tmp_path / "c.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read: it is not UTF-8 text"):
        load(tmp_path / "c.toml")


def test_a_file_is_read_and_its_paths_begin_where_it_lies(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(WHOLE)
    assert load(tmp_path / "c.toml").data == tmp_path / "data"


def test_problems_in_a_file_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("")
    with pytest.raises(ConfigError, match=r"c\.toml is not usable:\ncluster: missing"):
        load(tmp_path / "c.toml")


@pytest.mark.parametrize("protocol", PROMISES)
def test_a_starting_configuration_is_usable(protocol: str) -> None:
    text = starting_config(loopback(12, 5000), cluster="shop", protocol=protocol)
    config = parse(text, HERE)
    assert (config.cluster, config.protocol, config.data) == ("shop", protocol, HERE / "data")
    assert config.nodes["n12"] == "tcp://127.0.0.1:5012"
    assert config.log_level in LOG_LEVELS


def test_a_starting_configuration_that_would_not_be_usable_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cluster: .*Bad Name"):
        starting_config(loopback(3), cluster='Bad Name"')
    with pytest.raises(ConfigError, match="at least 2"):
        starting_config(loopback(1), protocol="lamport")
    with pytest.raises(ConfigError, match="nodes: "):
        starting_config({})


def test_the_keys_of_paxos_arrive_and_are_bounded() -> None:
    known = LEAST.replace("central", "paxos")
    assert parse(known, HERE).settings == ProtocolSettings()
    chosen = parse(known + '[paxos]\ndurability = "memory"\njournal_bytes = 100000\n', HERE)
    assert chosen.settings == ProtocolSettings(paxos_memory=True, paxos_journal_bytes=100_000)

    assert complaints(known + '[paxos]\ndurability = "disk"\njournal_bytes = 1\n') == [
        'paxos.durability: "disk" is not usable: one of "fsync", "memory" is expected',
        "paxos.journal_bytes: 1 is not usable: 65536 to 1073741824 bytes is expected",
    ]


def test_the_target_of_paxos_and_the_priority_of_a_node_arrive_and_are_bounded() -> None:
    known = LEAST.replace("central", "paxos") + "[paxos]\n"
    config = parse(known + "target_members = 3\nreplace_after_s = 2.5\n", HERE)
    assert config.settings.paxos_target == MemberTarget(3, 2_500)
    assert parse(known, HERE).settings.paxos_target == MemberTarget(0, 300_000)
    observer = parse(known.replace("[paxos]", 'nodes.n1.priority = "off"\n[paxos]'), HERE)
    assert observer.settings_of("n1").priority == UNWILLING

    assert complaints(known + "target_members = 4\nreplace_after_s = 0.5\n") == [
        "paxos.target_members: 4 is not usable: 3, 5 or 7 (an even number survives no more "
        "failures), or 0 for none, is expected",
        "paxos.replace_after_s: 0.5 is not usable: 1 to 86400 s is expected",
    ]


def test_the_times_of_paxos_are_derived_from_each_other_and_checked() -> None:
    known = LEAST.replace("central", "paxos") + "[paxos]\n"
    derived = parse(known + "heartbeat_ms = 100\nelection_ms = 2000\n", HERE).settings
    assert derived.paxos_timing == Timing(100, 450, 650, 2_000, 250)

    assert complaints(known + "lease_ms = 700\nelection_ms = 700\n") == [
        "paxos: election_ms is 700, but must be at least isolated_ms (800) + heartbeat_ms (50), "
        "which is 850"
    ]
    assert complaints(known + "lease_ms = 0\nheartbeat_ms = 5\n") == [
        "paxos.heartbeat_ms: 5 is not usable: 10 to 10000 ms is expected",
        "paxos.lease_ms: 0 is not usable: 1 to 10000 ms is expected",
    ]


def test_the_values_in_the_starting_configuration_are_the_defaults() -> None:
    text = starting_config(loopback(3))
    kept = r"(?!target_members|insecure)"  # These comments show what to set.
    shown = re.sub(rf"^# {kept}(\w+ = (?:\d|true)|\[limits\])", r"\1", text, flags=re.MULTILINE)
    assert shown.count("_ms = ") == len(Timing._fields) + len(BakeryTiming._fields)
    limits = shown.partition("[limits]")[2].partition("[log]")[0]
    assert set(re.findall(r"^\w+", limits, re.MULTILINE)) == {*Quotas.__struct_fields__}
    assert parse(shown, HERE) == Config(
        cluster="fencelock", protocol="paxos", nodes=loopback(3), data=HERE / "data"
    )


BASE = {
    "cluster": '"orders"',
    "protocol": '"bakery"',
    "data": '"./data"',
    "nodes.n1.address": '"tcp://10.0.0.1:4040"',
    "nodes.n-2.address": '"tcp://10.0.0.2:4040"',
}
"""The keys of a file, and their values in it."""

OTHERS = {
    "cluster": '"123"',
    "protocol": '"paxos"',
    "data": '"elsewhere"',
    "metrics": '"127.0.0.1:9404"',
    "nodes.n-2.address": '"tcp://10.9.9.9:1"',
    "nodes.n-2.listen": '"tcp://*:4040"',
    "nodes.n-2.priority": "3",
    "nodes.n-2.metrics": '"127.0.0.1:1"',
    "bakery.duration": "7.5",
    "bakery.grace": "8",
    "bakery.least": "4.5",
    "bakery.max_hold": "700.5",
    "bakery.copies": "false",
    "bakery.down_after": "2.5",
    "paxos.down_after": "3.5",
    "bakery.target_members": "5",
    "bakery.replace_after_s": "2.5",
    "bakery.obtention": '"unlimited"',
    "central.server": '"n-2"',
    "central.journal": "true",
    "paxos.durability": '"memory"',
    "paxos.journal_bytes": "70000",
    "paxos.heartbeat_ms": "40",
    "paxos.round_trip_ms": "60",
    "bakery.round_trip_ms": "60",
    "paxos.lease_ms": "260",
    "paxos.isolated_ms": "400",
    "paxos.election_ms": "900",
    "paxos.rank_ms": "200",
    "paxos.target_members": "3",
    "paxos.replace_after_s": "60.5",
    "limits.connections": "10",
    "limits.requests_per_s": "11",
    "limits.requests": "12",
    "limits.queries": "13",
    "limits.sessions": "15",
    "limits.unread_kib": "14",
    "limits.watches": "16",
    "limits.tickets": "17",
    "security.keys": '"secret"',
    "security.insecure": "true",
    "log.level": '"TRACE"',
    "log.trace": '["process", "clock"]',
    "log.folder": '"./log"',
    "log.file_mb": "5",
    "log.files": "3",
    "redis.address": '"tcp://127.0.0.1:6379"',
    "nodes.n-2.redis": '"tcp://127.0.0.1:6380"',
}
"""Every key but the tables, and another value for it."""


def written(values: dict[str, str]) -> str:
    return "\n".join(f"{key} = {value}" for key, value in values.items())


def variable(key: str) -> str:
    return "FENCELOCK_" + key.upper().replace("-", "_").replace(".", "__")


@pytest.mark.parametrize("key", OTHERS)
def test_a_variable_means_what_its_key_means_in_the_file(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = BASE | ({"protocol": '"paxos"'} if "redis" in key else {})
    (tmp_path / "c.toml").write_text(written(base))
    monkeypatch.setenv(variable(key), OTHERS[key].strip('"'))
    from_file = parse(written(base | {key: OTHERS[key]}), tmp_path)
    assert from_file != parse(written(base), tmp_path)
    assert load(tmp_path / "c.toml") == dataclasses.replace(from_file, overrides=(variable(key),))


def test_every_scalar_key_has_a_variable() -> None:
    assert set(scalars(File)) == set(OTHERS)


def scalars(table: type[BaseModel], path: str = "") -> Iterator[str]:
    for name, field in table.model_fields.items():
        kind, inner = field.annotation, f"{path}{name}"
        if name == "nodes":
            _, kind = get_args(kind)
            inner = "nodes.n-2"
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from scalars(kind, f"{inner}.")
        else:
            yield inner


@pytest.mark.parametrize("key", sorted(OTHERS))
def test_a_wrong_value_of_each_key_is_refused_with_its_allowed_values(key: str) -> None:
    wrong = "[[]]" if key == "log.trace" else "{}"
    (line,) = complaints(written(BASE | {key: wrong}))
    assert re.match(rf"{re.escape(key)}[.0-9]*: .* is not usable: .* is expected", line), line


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        (
            "FENCELOCK_PAXOS__HEARTBEAT_MS",
            "5",
            "FENCELOCK_PAXOS__HEARTBEAT_MS: 5 is not usable: 10 to 10000 ms is expected",
        ),
        (
            "FENCELOCK_PAXOS__HEARTBEAT_MS",
            "soon",
            'FENCELOCK_PAXOS__HEARTBEAT_MS: "soon" is not usable: 10 to 10000 ms is expected',
        ),
        (
            "FENCELOCK_NODES__N_2__PRIORITY",
            "15",
            "FENCELOCK_NODES__N_2__PRIORITY: 15 is not usable: 1 to 14, the smaller the likelier "
            'to lead or to become a member, or "off" is expected',
        ),
        (
            "FENCELOCK_BAKERY__GRACE",
            "nan",
            "FENCELOCK_BAKERY__GRACE: NaN is not usable: 0.1 to 604800 s is expected",
        ),
        (
            "FENCELOCK_PAXOS__HEARTBEET_MS",
            "50",
            'FENCELOCK_PAXOS__HEARTBEET_MS: not a known key; did you mean "heartbeat_ms"?',
        ),
        (
            "FENCELOCK_PAXO__HEARTBEAT_MS",
            "50",
            'FENCELOCK_PAXO__HEARTBEAT_MS: not a known key; did you mean "paxos"?',
        ),
        (
            "FENCELOCK_NODES__N3__PRIORITY",
            "3",
            "nodes.n3.address: missing; an address the other nodes can reach like "
            '"tcp://10.0.0.1:4040", with a port up to 65535 (set listen beside it to bind to '
            'another, like "tcp://0.0.0.0:4040") is expected',
        ),
        (
            "FENCELOCK_CENTRAL__SERVER",
            "n9",
            'central.server: "n9" is not usable: one of "n-2", "n1" is expected',
        ),
    ],
)
def test_a_problem_of_a_variable_names_it_its_value_and_the_limit(
    name: str, value: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(written(BASE))
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert str(caught.value) == f"{file} with {name} of the environment is not usable:\n{line}"


def test_no_variable_sets_a_whole_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c.toml").write_text(written(BASE))
    monkeypatch.setenv("FENCELOCK_PAXOS", "{}")
    with pytest.raises(ConfigError, match="FENCELOCK_PAXOS: paxos is a table: set its keys, like"):
        load(tmp_path / "c.toml")


def test_a_variable_that_is_no_list_where_one_is_wanted_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.toml").write_text(written(BASE))
    monkeypatch.setenv("FENCELOCK_LOG__TRACE", "process")
    with pytest.raises(ConfigError, match="one of FENCELOCK_LOG__TRACE is no list as in JSON"):
        load(tmp_path / "c.toml")
    monkeypatch.setenv("FENCELOCK_LOG__TRACE", '["process"]')
    assert load(tmp_path / "c.toml").traced_roles == ("process",)


def test_a_file_that_nests_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("a = " + "[" * 5_000)
    with pytest.raises(ConfigError, match="not TOML"):
        load(tmp_path / "c.toml")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ('data = "/root"', "data"),
        ('log.folder = "/etc/cron.d"', "log"),
        ('security.keys = "/"', "security"),
        ('nodes.n9.address = "tcp://127.0.0.1:9"', "nodes"),
        ("x = " + "[" * 5_000, "not TOML"),
    ],
)
def test_another_node_shares_no_other_settings_than_those_that_nodes_share(
    more: str, named: str
) -> None:
    shared = parse(written(BASE), Path()).shared
    assert toml_of(shared_from(shared)) == shared
    with pytest.raises(ConfigError, match=named):
        shared_from(f"{more}\n{shared}")


def test_empty_variables_and_those_of_others_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.toml").write_text(written(BASE))
    for name in ("FENCELOCK_DATA", "FENCELOCK_PAXOS__HEARTBEAT_MS"):
        monkeypatch.setenv(name, "")
    for name in ("FENCELOCK_PORT", "FENCELOCK_SERVICE_HOST", "FENCELOCK_CONNECT", "PAXOS__X"):
        monkeypatch.setenv(name, "tcp://10.0.0.9:4040")
    assert load(tmp_path / "c.toml") == parse(written(BASE), tmp_path)


def test_a_client_reads_a_file_without_pydantic_settings(tmp_path: Path) -> None:
    """It would double the time of the first `connect`."""
    (tmp_path / "cluster.toml").write_text(written(BASE))
    program = (
        "import sys; from fencelock.cluster.client.settings import Target;"
        "print(Target.find(None, None));"
        "assert 'pydantic' in sys.modules and 'pydantic_settings' not in sys.modules"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FENCELOCK_")}
    done = run_to_end([sys.executable, "-c", program], cwd=tmp_path, env=clean, check=True)
    assert "tcp://10.0.0.1:4040" in done.stdout


def test_a_node_is_started_by_the_path_of_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(
        f'cluster = "c"\nprotocol = "central"\n'
        f'nodes.n1.address = "tcp://127.0.0.1:{free_ports(1)[0]}"\n'
    )
    with fencelock.Node.start(str(file), "n1") as node:
        assert fencelock.load(file).nodes == {"n1": node.address}
    with pytest.raises(ConfigError, match=r"elsewhere\.toml does not exist"):
        fencelock.Node.start("elsewhere.toml", "n1")


# Times


def test_clients_take_their_times_from_one_place() -> None:
    assert (FIRST_REPEAT_MS, Endpoints({}, Address("")).patience_ms) == (PROBE_AFTER_MS, REPLY_MS)


def test_one_follower_is_elected_before_the_next_one_stands() -> None:
    assert TIMING.rank_ms > 2 * TIMING.round_trip_ms
    assert derived(10).rank_ms > 2 * ROUND_TRIP_MS


def test_a_probe_finds_a_dead_proxy_before_its_silence_does() -> None:
    assert PROBE_AFTER_MS + REPLY_MS < ENDPOINT_SILENCE_MS


@pytest.mark.parametrize(
    ("changed", "value", "text"),
    [
        (
            "lease_ms",
            199,
            "lease_ms is 199, but must be at least 4 x heartbeat_ms (50), which is 200",
        ),
        (
            "isolated_ms",
            299,
            "isolated_ms is 299, but must be at least lease_ms (250) + heartbeat_ms (50)",
        ),
        (
            "election_ms",
            399,
            "election_ms is 399, but must be at least isolated_ms (350) + heartbeat_ms (50)",
        ),
        ("election_ms", 499, "election_ms is 499, but must be at least 500"),
        ("rank_ms", 99, "rank_ms is 99, but must be at least 2 x heartbeat_ms (50), which is 100"),
        ("heartbeat_ms", 126, "heartbeat_ms is 126, but must be at most 125"),
        (
            "heartbeat_ms",
            63,
            "lease_ms is 250, but must be at least 4 x heartbeat_ms (63), which is 252",
        ),
    ],
)
def test_times_that_do_not_fit_are_refused_by_name(changed: str, value: int, text: str) -> None:
    times: Any = TIMING._replace(**{changed: value})
    with pytest.raises(ValueError, match=re.escape(text)):
        times.checked()


def test_the_least_that_fits_is_accepted() -> None:
    Timing(heartbeat_ms=50, lease_ms=200, isolated_ms=250, election_ms=500, rank_ms=100).checked()


def test_times_left_out_are_derived_from_the_others() -> None:
    assert derived(50) == TIMING
    assert derived(100) == Timing(100, 450, 650, 1_350, 250)
    assert derived(10) == Timing(10, 90, 110, 500, 150)
    assert derived(50, lease_ms=1_000) == Timing(50, 1_000, 1_100, 1_450, 150)
    assert derived(50, election_ms=5_000) == TIMING._replace(election_ms=5_000)


@pytest.mark.parametrize("heartbeat_ms", range(1, REPLY_MS // 2 + 1))
def test_derived_times_always_fit(heartbeat_ms: int) -> None:
    derived(heartbeat_ms)


def test_a_slower_network_lengthens_every_wait_by_its_round_trips() -> None:
    slow = derived(50, round_trip_ms=300)
    assert slow == Timing(50, 500, 600, 950, 400, 300)
    assert (slow.reply_ms, slow.outcome_ms, slow.startup_ms) == (350, 1_000, 350)
    assert (TIMING.reply_ms, TIMING.outcome_ms, TIMING.startup_ms) == (100, 500, 100)


@pytest.mark.parametrize("round_trip_ms", [1, 49, 50, 51, 300, ROUND_TRIP_MS_MAX])
@pytest.mark.parametrize("heartbeat_ms", [1, 50, REPLY_MS // 2])
def test_derived_times_fit_every_round_trip(heartbeat_ms: int, round_trip_ms: int) -> None:
    times = derived(heartbeat_ms, round_trip_ms=round_trip_ms)
    assert times.lease_ms >= round_trip_ms + heartbeat_ms
    assert times.rank_ms > round_trip_ms


def test_times_that_are_too_short_for_the_round_trip_are_refused_by_name() -> None:
    text = (
        "lease_ms is 400, but must be at least 4 x heartbeat_ms (50) + round_trip_ms (300) - 50, "
        "which is 450"
    )
    with pytest.raises(ValueError, match=re.escape(text)):
        derived(50, lease_ms=400, round_trip_ms=300)
