"""`connect`: its arguments, its errors, and its log lines."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.collected import Collected, logged_to
from support.expect import PATIENCE_S, present
from support.programs import run_to_end
from support.real_nodes import running_nodes

import fencelock
from fencelock import AcquireCancelledError, ConfigError, UnavailableError, aio
from fencelock.actors.api.lock_message import Absence, Inspect, LockStatus
from fencelock.actors.session.event import EndpointChanged, Wait, Waiting
from fencelock.cluster.client.callback_executor import ThreadExecutor
from fencelock.cluster.client.connection import alias_of, notify
from fencelock.cluster.client.waiting import report, why_unreached
from fencelock.cluster.host.pending_asks import AskReply
from fencelock.cluster.testing.faults import LinkFaults
from fencelock.cluster.testing.ports import free_ports
from fencelock.testing import LocalCluster, expire, lose, partition

Records = Collected[logging.LogRecord]


@pytest.fixture
def records() -> Iterator[Records]:
    records = Records()
    with logged_to(records.add, "INFO"):
        yield records


def logged(records: Records, level: int, part: str) -> logging.LogRecord:
    """Return the first record of that level with that text, once it is there."""

    def found(all_of_them: Sequence[logging.LogRecord]) -> logging.LogRecord | None:
        fits = (one for one in all_of_them if one.levelno == level)
        return next((one for one in fits if part in one.getMessage()), None)

    return records.wait_for(found)


def test_addresses_may_be_a_list(cluster: LocalCluster) -> None:
    nobody = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    for addresses in ([nobody, cluster.addresses], (cluster.addresses,)):
        with fencelock.connect(addresses) as client, client.lock("a"):
            pass


NO_TEXTS: list[Any] = [{"tcp://a:1"}, 7, [], b"tcp://a:1"]
NOT_USABLE: list[tuple[dict[str, Any], type[Exception], str]] = [
    *(
        (
            {"addresses": one},
            ConfigError,
            f"addresses: '{one.rpartition(',')[2]}' in '{one}' must be like tcp://host:4040, with "
            "a port from 1 to 65535; several are separated by commas",
        )
        for one in (
            "",
            "localhost:4040",
            "tcp://localhost",
            "tcp://localhost:0",
            "tcp://localhost:70000",
            "udp://localhost:4040",
            "tcp://a:4040,",
        )
    ),
    (
        {"addresses": "tcp://a:4040,tcp://a:4040"},
        ConfigError,
        "addresses: 'tcp://a:4040' is twice in 'tcp://a:4040,tcp://a:4040'",
    ),
    (
        {"addresses": ",".join(f"tcp://a:{port}" for port in range(1, 66))},
        ConfigError,
        "addresses: 65 given, at most 64 are allowed",
    ),
    *(
        (
            {"addresses": one},
            ConfigError,
            f"addresses: {one!r} must be a text, or a list of texts: "
            '"tcp://host-1:4040,tcp://host-2:4040" or ["tcp://host-1:4040", "tcp://host-2:4040"]',
        )
        for one in NO_TEXTS
    ),
    (
        {"addresses": [b"tcp://a:1"]},
        ConfigError,
        "addresses: b'tcp://a:1' in [b'tcp://a:1'] must be a text",
    ),
    *(({"cluster": one}, ConfigError, f"cluster: cluster id {one!r} ") for one in ("", "x\n")),
    *(
        (
            {"connect_timeout": one},
            ConfigError,
            f"connect_timeout is {one}, and must be above 0 (s)",
        )
        for one in (0, -1)
    ),
    *(
        ({"ttl": one}, ConfigError, f"ttl is {one}, and must be from 1 to 3600 (s)")
        for one in (0, 0.999, 3_601, float("nan"))
    ),
    (
        {"label": "x" * 257},
        ConfigError,
        f"label '{'x' * 40}' of 257 bytes: at most 256 bytes are allowed, without control "
        "characters",
    ),
    (
        {"label": "two\nlines"},
        ConfigError,
        r"label 'two\nlines' of 9 bytes has U+000A: at most 256 bytes are allowed, without control "
        "characters",
    ),
    (
        {"retain": 3_601},
        ConfigError,
        "retain is 3601, and must be a number of seconds from 0 to 3600",
    ),
    *(
        ({name: one}, TypeError, f"{name} is {one!r}, and must be ")
        for name, one in (("ttl", "x"), ("connect_timeout", "x"), ("ttl", True), ("label", 5))
    ),
]


@pytest.mark.parametrize("connect", [fencelock.connect, aio.connect])
def test_an_argument_that_is_not_usable_is_refused_at_once(connect: Any) -> None:
    for arguments, error, text in NOT_USABLE:
        with pytest.raises(error, match=f"^{re.escape(text)}"):
            connect(**{"addresses": "tcp://127.0.0.1:4040"} | arguments)


LAZY = """
import fencelock
for use in (
    lambda: fencelock.connect("localhost:4040", lazy=True),
    lambda: fencelock.aio.connect("localhost:4040"),
    lambda: fencelock.configure("localhost:4040"),
):
    try:
        use()
    except fencelock.ConfigError:
        print("refused")
"""


def test_addresses_are_refused_at_once_without_assertions_too() -> None:
    ended = run_to_end([sys.executable, "-O", "-c", LAZY])
    assert ended.stdout.split() == ["refused"] * 3, ended.stderr


async def connected_aio(addresses: list[str]) -> aio.Client:
    return await aio.connect(addresses, connect_timeout=0.1)


def lone_error(error: BaseException) -> None:
    """Check that a user sees one error: not those in whose handling it was raised."""
    text = "".join(traceback.format_exception(error))
    assert text.count("Traceback") == 1, text
    assert "pykka" not in text


def test_no_answer_names_the_addresses_and_their_source_in_one_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two = (f"tcp://127.0.0.1:{port}" for port in free_ports(2))
    monkeypatch.setenv("FENCELOCK_CONNECT", f"{one},{two}")
    with pytest.raises(fencelock.UnavailableError) as refused:
        fencelock.connect(connect_timeout=0.1)
    for part in (one, two, "connection refused", "from FENCELOCK_CONNECT", "within 0.1 s"):
        assert part in str(refused.value)
    lone_error(refused.value)
    with pytest.raises(fencelock.UnavailableError, match="as given") as refused:
        asyncio.run(connected_aio([one, two]))
    lone_error(refused.value)


def test_a_timeout_shows_the_line_of_the_user_and_one_of_ours(cluster: LocalCluster) -> None:
    async def main() -> None:
        async with aio.connect(cluster.addresses) as client, client.lock("x", timeout=0):
            pass

    with cluster.connect().lock("x"):
        with (
            pytest.raises(fencelock.LockTimeoutError) as threads,
            cluster.connect().lock("x", timeout=0),
        ):
            pass
        with pytest.raises(fencelock.LockTimeoutError) as tasks:
            asyncio.run(main())
    for refused in (threads, tasks):
        lone_error(refused.value)
        places = [one.filename for one in traceback.extract_tb(refused.value.__traceback__)]
        assert sum("/fencelock/cluster/" in place for place in places) == 1, places


@pytest.mark.parametrize("host", ["a..b", "[::1::]", "x" * 70 + ".org"])
def test_an_address_that_no_host_can_have_is_named(host: str) -> None:
    assert why_unreached(f"tcp://{host}:4040") == "its host is neither a name nor an address"


def test_a_lost_hold_and_a_lost_session_are_warnings(
    cluster: LocalCluster, records: Records
) -> None:
    client = cluster.connect()
    hold = present(client.lock("evicted").acquire())
    lose(hold)
    text = logged(records, logging.WARNING, "lost: ").getMessage()
    assert f"lock 'evicted' (fence {hold.fence})" in text
    _many = [client.lock(f"many-{number}").acquire() for number in range(5)]
    expire(client)
    assert "and 2 more" in logged(records, logging.WARNING, "many-").getMessage()


def test_a_suspect_session_is_a_warning(cluster: LocalCluster, records: Records) -> None:
    client = cluster.connect(ttl=1)
    _held = client.lock("a").acquire()
    with partition(client):
        text = logged(records, logging.WARNING, "suspect: ").getMessage()
        assert "lock 'a' (fence" in text
        assert "has not confirmed the session for" in text
        logged(records, logging.WARNING, "lost: lock 'a'")


def test_a_callback_that_cannot_be_called_is_refused(cluster: LocalCluster) -> None:
    client = cluster.connect()
    lock = client.lock("a")
    hold = present(lock.acquire())
    text = "callback is 5, and must be callable with one argument, a "
    wrong: Any = 5
    for one in (client, lock, hold):
        for add in (one.on_lost, one.on_suspect, one.on_unlocking):
            with pytest.raises(TypeError, match=text + "Notice"):
                add(wrong)
    with pytest.raises(TypeError, match=text + "ClusterState"):
        client.on_cluster(wrong)


def test_a_coroutine_function_is_refused_as_a_callback(cluster: LocalCluster) -> None:
    async def callback(_: object) -> None:
        raise AssertionError

    class Called:
        async def __call__(self, _: object) -> None:
            raise AssertionError

    hold = present(cluster.connect().lock("a").acquire())
    for wrong in (callback, Called()):
        with pytest.raises(TypeError, match="a coroutine function, which nobody would await"):
            hold.on_lost(wrong)


def test_a_program_that_sets_no_log_up_sees_that_a_lock_was_lost(
    cluster: LocalCluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # Those of pytest.
    client = cluster.connect()
    hold = present(client.lock("a").acquire())
    called = threading.Event()
    hold.on_lost(lambda _: called.set())
    lose(hold)
    assert called.wait(PATIENCE_S)
    client.close()
    assert "lost: lock 'a'" in capsys.readouterr().err


def test_acquires_keep_their_time_without_a_majority(tmp_path: Path) -> None:
    with running_nodes(tmp_path) as nodes:
        addresses = [node.address for node in nodes.values()]
        with fencelock.connect(addresses, connect_timeout=PATIENCE_S) as client:
            with client.lock("a", timeout=PATIENCE_S):
                pass
            nodes["n3"].stop()
            nodes["n2"].stop()
            for blocking, timeout, most_s in ((False, None, 3.5), (True, 3, 7.0)):
                began = time.monotonic()
                with pytest.raises(fencelock.UnavailableError):
                    client.lock("b").acquire(blocking=blocking, timeout=timeout)
                assert time.monotonic() - began < most_s


def test_another_endpoint_is_news(cluster: LocalCluster, records: Records) -> None:
    """`transcripts/session-endpoints.txt` shows when the session sends it."""
    client: Any = cluster.connect()
    connection = client._connection
    changed = EndpointChanged(endpoint="tcp://b:1", former="tcp://a:1")
    registry = connection.hold_registry
    notify(connection.executor, connection.cluster_watch, registry, changed)
    logged(records, logging.INFO, "tcp://a:1 is left; requests go to tcp://b:1")


def test_an_acquire_that_waits_logs_who_holds_the_lock(
    cluster: LocalCluster, records: Records
) -> None:
    holder, waiter = cluster.connect(label="nightly of host-1"), cluster.connect()
    with holder.lock("x"):
        lock = waiter.lock("x")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(lock.acquire)
            text = logged(records, logging.INFO, "lock 'x': waiting for 2 s").getMessage()
            lock.cancel()
        assert "held by nightly of host-1" in text
        with pytest.raises(AcquireCancelledError):
            waiting.result()


class Refusing:
    """A session whose node answers no read, and says why."""

    def submit(self, request: Inspect, reply: AskReply) -> None:
        assert request == Inspect(lock="x")
        reply.fail(UnavailableError("lock 'x': it is not known who holds it: n1 has no majority"))


class WithoutReplies:
    """A session of `lamport` whose node waits for two others."""

    def submit(self, request: Inspect, reply: AskReply) -> None:
        silent = (Absence(node="n2", silent_ms=4_000), Absence(node="n3", silent_ms=7_000))
        reply.set(LockStatus(lock="x", holder=None, waiters=(), waits_for=silent))


def test_an_acquire_whose_holder_is_not_known_logs_why_and_says_it_once(records: Records) -> None:
    session: Any = Refusing()
    event = Waiting(waits=(Wait("x", 2_000),), more=0, silence="")
    report(ThreadExecutor(), session, ("tcp://a:1",), event)
    text = logged(records, logging.WARNING, "lock 'x'").getMessage()
    said = "lock 'x': waiting for 2 s: it is not known who holds it: n1 has no majority"
    assert text == said


@pytest.mark.parametrize(
    ("more", "excuse", "text"),
    [
        (0, "bakery has no leaders", "lock 'x': waiting for 2 s: bakery has no leaders"),
        (3, "no majority", "lock 'x': waiting for 2 s and 3 more: no majority"),
        (
            0,
            "",
            "lock 'x': waiting for 2 s: nodes that must reply first are silent: n2 for 4 s, n3 for "
            "7 s",
        ),
    ],
)
def test_a_wait_is_reported_with_its_reason(
    records: Records, more: int, excuse: str, text: str
) -> None:
    session: Any = WithoutReplies()
    waits = (Wait("x", 2_000),)
    report(
        ThreadExecutor(),
        session,
        ("tcp://a:1",),
        Waiting(waits=waits, more=more, silence="", excuse=excuse),
    )
    assert logged(records, logging.WARNING, "lock 'x'").getMessage() == text


@pytest.mark.parametrize("options", [{"owner": "job"}, {"retain": 60}], ids=["owner", "retained"])
def test_an_acquire_that_waits_for_its_own_client_logs_it_once(
    cluster: LocalCluster, records: Records, options: dict[str, Any]
) -> None:
    client = cluster.connect(label="the only client")
    lock = client.lock("own", **options)
    with ThreadPoolExecutor(2) as pool:
        with lock:
            waiting = [pool.submit(lock.acquire, timeout=PATIENCE_S) for _ in range(2)]
            text = logged(records, logging.INFO, "lock 'own': waiting for 2 s: ").getMessage()
            lock.cancel()
        assert "held by the only client" in text
        for one in waiting:
            with pytest.raises(AcquireCancelledError):
                one.result()
    assert sum("waiting for" in one.getMessage() for one in records.values) == 1


def test_an_undecided_acquire_logs_why_and_keeps_its_time(records: Records) -> None:
    client = fencelock.connect("tcp://127.0.0.1:1", lazy=True)
    began = time.monotonic()
    with pytest.raises(UnavailableError, match=r"tcp://127\.0\.0\.1:1 "):
        client.lock("x").acquire(timeout=3)
    assert time.monotonic() - began < 3.5
    text = logged(records, logging.WARNING, "lock 'x': waiting for ").getMessage()
    assert "no node answers. Tried tcp://127.0.0.1:1: cannot be reached (connection ref" in text
    client.close()


def test_a_survey_ends_in_time_and_names_the_node_that_is_silent(cluster: LocalCluster) -> None:
    silent = cluster.addresses.replace("127.0.0.1", "localhost")
    with fencelock.connect([cluster.addresses, silent]) as client:
        assert client.survey().silent == ()
        whole: Any = client
        LinkFaults(whole._connection.links).cut_off.add(alias_of(1))
        began = time.monotonic()
        client.reply_by(began + 1)
        surveyed = client.survey()
    assert ([node.node for node in surveyed.statuses], surveyed.silent) == (["local"], (silent,))
    assert time.monotonic() - began < 1
