"""Guards of memory, files, SQLite and HTTP: a stale fence is refused, and changes nothing."""

from __future__ import annotations

import asyncio
import pickle
import runpy
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults

import httpx
import psycopg
import pytest
import sqlalchemy
from fastapi import FastAPI
from sqlalchemy.orm import Session
from support.django_guard import django_connection, protects_django
from support.expect import PATIENCE_S
from support.paths import EXAMPLES

from fencelock.guard import (
    FenceMiddleware,
    FileGuard,
    Guard,
    MemoryGuard,
    SqlGuard,
    StaleFenceError,
    WsgiFenceMiddleware,
    fence_headers,
)


@pytest.fixture(params=["memory", "file", "sqlite", "sqlalchemy"])
def guard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Guard]:
    match request.param:
        case "memory":
            yield MemoryGuard()
        case "file":
            yield FileGuard(tmp_path / "orders")
        case "sqlite":
            connection = sqlite3.connect(tmp_path / "db")
            yield made(SqlGuard(connection))
            connection.close()
        case _:
            engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'db'}")
            with Session(engine) as session:
                yield made(SqlGuard(session))
            engine.dispose()


def made(guard: SqlGuard) -> SqlGuard:
    guard.create_table()
    guard.create_table()
    return guard


def test_a_stale_fence_is_refused_by_both_numbers(guard: Guard) -> None:
    guard.check("orders/42", 17)
    guard.check("orders/42", 17)
    guard.check("orders/42", 1_795_366_239_803_408)
    with pytest.raises(StaleFenceError) as refused:
        guard.check("orders/42", 1_795_366_239_803_407)
    assert refused.value.fence == 1_795_366_239_803_407
    assert refused.value.highest == 1_795_366_239_803_408
    assert "fence 1795366239803407 is stale" in str(refused.value)
    assert "fence 1795366239803408 was seen" in str(refused.value)
    guard.check("orders/42", 2**63 - 1)
    with pytest.raises(StaleFenceError):
        guard.check("orders/42", 2**63 - 2)


@pytest.mark.parametrize("fence", [0, -1, 2**63])
def test_a_number_that_is_no_fence_is_refused(guard: Guard, fence: int) -> None:
    with pytest.raises(ValueError, match="must be from 1"):
        guard.check("orders/42", fence)


@pytest.mark.parametrize("fence", [None, "17", 17.0, True])
def test_a_fence_that_is_no_number_is_refused(guard: Guard, fence: Any) -> None:
    with pytest.raises(TypeError, match="must be the int of a hold"):
        guard.check("orders/42", fence)


def test_the_error_survives_a_queue_between_processes() -> None:
    error = pickle.loads(pickle.dumps(StaleFenceError("orders/42", 1, 2)))
    assert (error.resource, error.fence, error.highest) == ("orders/42", 1, 2)


# -- files


def test_a_late_writer_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    FileGuard(path).write(b"by 18", 18)
    with pytest.raises(StaleFenceError):
        FileGuard(path).write(b"by 17", 17)
    assert path.read_bytes() == b"by 18"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["orders", "orders.fence"]


def test_a_writer_waits_for_one_that_writes(tmp_path: Path) -> None:
    path = tmp_path / "orders"
    order: list[int] = []
    entered = threading.Event()

    def later() -> None:
        entered.set()
        with FileGuard(path).writing(18):
            order.append(18)

    with FileGuard(path).writing(17):
        thread = threading.Thread(target=later)
        thread.start()
        assert entered.wait(PATIENCE_S)
        thread.join(0.05)
        order.append(17)
    thread.join(PATIENCE_S)
    assert order == [17, 18]


def test_the_example_refuses_a_late_holder(tmp_path: Path) -> None:
    example = runpy.run_path(str(EXAMPLES / "checked_file.py"))
    file = example["CheckedFile"](tmp_path, "lock-1")
    file.append("one", 17, 0)
    file.append("two", 18, 0)
    for late in (17, 18):
        with pytest.raises(StaleFenceError):
            file.append("late", late, 0)
    assert file.read() == {"updates": 2, "fence": 18}
    assert file.findings.fence_regressions == 2


# -- SQL


def test_a_refused_transaction_changes_nothing_and_a_rollback_takes_the_fence_back(
    tmp_path: Path,
) -> None:
    connection = sqlite3.connect(tmp_path / "db")
    guard = made(SqlGuard(connection))
    connection.execute("CREATE TABLE orders (state TEXT)")
    connection.execute("INSERT INTO orders VALUES ('new')")
    connection.commit()
    with connection:
        guard.check("orders", 18)
        connection.execute("UPDATE orders SET state = 'paid'")
    connection.execute("UPDATE orders SET state = 'late'")
    with pytest.raises(StaleFenceError), connection:
        guard.check("orders", 17)
    assert connection.execute("SELECT state FROM orders").fetchall() == [("paid",)]
    guard.check("orders", 20)
    connection.rollback()
    with connection:
        guard.check("orders", 19)
    connection.close()


class ChangedRows(sqlite3.Cursor):
    """A cursor that counts the rows that an UPDATE changed, as those of MySQL do by default."""

    @property
    def rowcount(self) -> int:
        return 0


class Counting(sqlite3.Connection):
    def cursor(self, factory: Any = ChangedRows) -> Any:
        return super().cursor(factory)


def test_a_driver_that_counts_changed_rows_is_refused_not_asked_forever(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "db", factory=Counting)
    guard = made(SqlGuard(connection))
    guard.check("a", 5)
    with pytest.raises(RuntimeError, match="the client flag FOUND_ROWS"):
        guard.check("a", 5)
    with pytest.raises(StaleFenceError):
        guard.check("a", 4)
    connection.close()


def test_autocommit_is_refused() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    guard = made(SqlGuard(connection))
    with pytest.raises(RuntimeError, match="autocommit"):
        guard.check("orders", 17)
    connection.execute("BEGIN")
    guard.check("orders", 17)
    connection.close()


def test_autocommit_below_sqlalchemy_is_refused(tmp_path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'db'}", isolation_level="AUTOCOMMIT")
    with engine.begin() as connection, pytest.raises(RuntimeError, match="autocommit"):
        made(SqlGuard(connection)).check("orders", 17)
    with Session(engine) as session, pytest.raises(RuntimeError, match="autocommit"):
        SqlGuard(session).check("orders", 17)
    engine.dispose()


def test_a_connection_of_django_is_protected_in_atomic_and_refused_outside(tmp_path: Path) -> None:
    engine = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "db")}
    protects_django(django_connection("guarded", engine))


def test_an_asynchronous_connection_is_refused_by_its_name() -> None:
    async def never(self: object) -> None:
        del self

    def like(module: str, name: str, *methods: str) -> type:
        return type(name, (), {"__module__": module, **dict.fromkeys(methods, never)})

    asynchronous = {
        psycopg.AsyncConnection: "psycopg.AsyncConnection is asynchronous.*AsyncSqlGuard",
        like("aiosqlite.core", "Connection", "commit"): "aiosqlite.Connection is asynchronous",
        like(
            "sqlalchemy.ext", "AsyncSession", "execute", "run_sync"
        ): "AsyncSession.*AsyncSqlGuard",
    }
    for kind, text in asynchronous.items():
        with pytest.raises(TypeError, match=text):
            SqlGuard(object.__new__(kind))


@pytest.mark.parametrize("table", ["fences; DROP TABLE orders", "", 'a"b'])
def test_a_table_must_have_a_plain_name(table: str) -> None:
    connection = sqlite3.connect(":memory:")
    with pytest.raises(ValueError, match="plain name"):
        SqlGuard(connection, table)
    connection.close()


# -- HTTP


Ask = Callable[[str, dict[str, str]], httpx.Response]
"""Sends a request by method and headers."""


def asgi(application: Any) -> Ask:
    async def ask(method: str, headers: dict[str, str]) -> httpx.Response:
        transport = httpx.ASGITransport(app=application)
        async with httpx.AsyncClient(transport=transport, base_url="http://store") as client:
            return await client.request(method, "/orders/42", headers=headers)

    return lambda method, headers: asyncio.run(ask(method, headers))


def wsgi(application: Any) -> Ask:
    def ask(method: str, headers: dict[str, str]) -> httpx.Response:
        transport = httpx.WSGITransport(app=application, raise_app_exceptions=False)
        with httpx.Client(transport=transport, base_url="http://store") as client:
            return client.request(method, "/orders/42", headers=headers)

    return ask


class Store:
    """A service that writes, as an ASGI and as a WSGI application."""

    def __init__(self) -> None:
        self.writes = 0
        self.overtaken: StaleFenceError | None = None

    def write(self) -> None:
        if self.overtaken:
            raise self.overtaken
        self.writes += 1

    async def asgi(self, scope: Any, receive: Any, send: Any) -> None:
        self.write()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"written"})

    def wsgi(self, environ: Any, start_response: Any) -> list[bytes]:
        setup_testing_defaults(environ)
        start_response("200 OK", [])
        self.write()
        return [b"written"]


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture(params=["asgi", "wsgi"])
def protected(request: pytest.FixtureRequest, store: Store) -> Callable[..., Ask]:
    def protected(**options: Any) -> Ask:
        if request.param == "asgi":
            return asgi(FenceMiddleware(store.asgi, **options))
        return wsgi(WsgiFenceMiddleware(store.wsgi, **options))

    return protected


def test_a_stale_request_does_not_reach_the_application(
    protected: Callable[..., Ask], store: Store
) -> None:
    ask = protected()
    name = "orders/42 für alle"
    assert ask("PUT", fence_headers(name, 18)).text == "written"
    refused = ask("PUT", fence_headers(name, 17))
    assert refused.status_code == 412
    assert (refused.json()["fence"], refused.json()["highest"]) == (17, 18)
    assert "fence 17 is stale" in refused.json()["error"]
    assert name in refused.json()["error"]
    assert store.writes == 1
    assert ask("PUT", fence_headers("another", 17)).status_code == 200
    assert ask("GET", fence_headers(name, 17)).status_code == 200


def test_an_overtaken_handler_answers_alike(protected: Callable[..., Ask], store: Store) -> None:
    store.overtaken = StaleFenceError("orders/42", 17, 18)
    refused = protected()("PUT", fence_headers("orders/42", 17))
    assert (refused.status_code, refused.json()["highest"]) == (412, 18)


@pytest.mark.parametrize(
    "headers",
    [
        {"Fencelock-Name": "a", "Fencelock-Fence": "0"},
        {"Fencelock-Name": "a", "Fencelock-Fence": "-1"},
        {"Fencelock-Name": "a", "Fencelock-Fence": "9" * 19},
        {"Fencelock-Name": "a", "Fencelock-Fence": "9" * 5000},
        {"Fencelock-Name": "a", "Fencelock-Fence": "None"},
        {"Fencelock-Name": "a"},
        {"Fencelock-Fence": "1"},
        {"Fencelock-Name": "", "Fencelock-Fence": "1"},
        {"Fencelock-Name": "a" * 257, "Fencelock-Fence": "1"},
    ],
)
def test_headers_that_name_no_hold_are_refused(
    protected: Callable[..., Ask], store: Store, headers: dict[str, str]
) -> None:
    assert protected()("PUT", headers).status_code == 400
    assert store.writes == 0


def test_a_fence_can_be_required(protected: Callable[..., Ask], store: Store) -> None:
    assert protected()("PUT", {}).status_code == 200
    ask = protected(required=True)
    assert ask("PUT", {}).status_code == 428
    assert ask("GET", {}).status_code == 200
    assert store.writes == 2


def test_it_is_a_middleware_of_fastapi() -> None:
    app = FastAPI()
    app.add_middleware(FenceMiddleware, guard=MemoryGuard())

    @app.put("/orders/42")
    def write() -> str:
        return "written"

    ask = asgi(app)
    assert ask("PUT", fence_headers("orders/42", 18)).status_code == 200
    assert ask("PUT", fence_headers("orders/42", 17)).status_code == 412
