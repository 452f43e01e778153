"""Guards of a real PostgreSQL and a real Redis, with the fences of a real lock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from support.django_guard import django_connection, protects_django
from support.expect import PATIENCE_S, present
from support.programs import postgres_server, redis_server

import fencelock
from fencelock.guard import AsyncSqlGuard, RedisGuard, SqlGuard, StaleFenceError
from fencelock.testing import LocalCluster, lose

asyncpg: Any = import_module("asyncpg")  # It has no types.


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with postgres_server() as where:
        with connected(where) as connection:
            SqlGuard(connection).create_table()
            connection.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT)")
        yield where


@pytest.fixture(scope="module")
def redis_client() -> Iterator[Any]:
    with redis_server() as client:
        yield client


def connected(where: str, **options: Any) -> Any:
    """Return a connection; its statements are not literals, which the driver's types demand."""
    return psycopg.connect(where, **options)


def late_and_present(cluster: LocalCluster, name: str) -> tuple[int, int]:
    """Return the fences of a holder that lost its lock and of the one after it."""
    hold = present(cluster.connect().lock(name).acquire())
    lose(hold)
    with cluster.connect().lock(name, timeout=PATIENCE_S) as later:
        return hold.fence, later.fence


def test_postgresql_refuses_a_late_holder(postgres: str, fencelock_cluster: LocalCluster) -> None:
    late, present = late_and_present(fencelock_cluster, "orders/1")
    with connected(postgres) as connection:
        SqlGuard(connection).check("orders/1", present)
        connection.execute("INSERT INTO orders VALUES ('1', 'paid')")

    def write_late() -> None:
        with connected(postgres) as connection:
            connection.execute("UPDATE orders SET state = 'late' WHERE id = '1'")
            SqlGuard(connection).check("orders/1", late)

    with pytest.raises(StaleFenceError, match=f"{late}.*{present}"):
        write_late()
    with connected(postgres) as connection:
        found = connection.execute("SELECT state FROM orders WHERE id = '1'").fetchall()
    assert found == [("paid",)]


def error_of_the_late(late: Any, present: Any, name: str) -> BaseException | None:
    """Let ``late`` write under 17 while ``present``, which writes under 18, commits."""
    SqlGuard(present).check(name, 18)
    with ThreadPoolExecutor(1) as other:
        writing = other.submit(SqlGuard(late).check, name, 17)
        present.commit()
        return writing.exception(PATIENCE_S)


@pytest.mark.parametrize("isolation", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_overtaken_transactions_of_postgresql_cannot_commit(postgres: str, isolation: str) -> None:
    """A late holder's transaction that began first waits for the other, and then fails."""
    name = f"orders/{isolation}"
    with connected(postgres) as connection:
        SqlGuard(connection).check(name, 1)
    late, present = connected(postgres), connected(postgres)
    late.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
    late.execute("SELECT 1 FROM orders")  # Its snapshot is older than the other's write.
    error = error_of_the_late(late, present, name)
    assert isinstance(error, StaleFenceError | psycopg.errors.SerializationFailure)
    late.close()
    present.close()


def test_first_writers_of_a_new_resource_meet(postgres: str) -> None:
    """Both find no row: one adds it, and the other must not go on, whenever it looked."""
    late, present = connected(postgres), connected(postgres)
    error = error_of_the_late(late, present, "new")
    assert isinstance(error, StaleFenceError | psycopg.errors.UniqueViolation)
    late.rollback()
    with pytest.raises(StaleFenceError):
        SqlGuard(late).check("new", 17)
    late.close()
    present.close()


def test_a_connection_of_django_to_postgresql_is_protected_within_atomic(postgres: str) -> None:
    where = conninfo_to_dict(postgres)
    names = {"dbname": "NAME", "host": "HOST", "port": "PORT", "user": "USER"}
    database: dict[str, Any] = {names[key]: value for key, value in where.items()}
    protects_django(
        django_connection("postgres", {"ENGINE": "django.db.backends.postgresql", **database})
    )


def test_autocommit_of_postgresql_is_refused(postgres: str) -> None:
    with connected(postgres, autocommit=True) as connection:
        with pytest.raises(RuntimeError, match="autocommit"):
            SqlGuard(connection).check("auto", 1)
        with connection.transaction():
            SqlGuard(connection).check("auto", 1)


def test_sqlalchemy_on_postgresql(postgres: str) -> None:
    folder = dict(part.split("=") for part in postgres.split())["host"]
    engine = sqlalchemy.create_engine(f"postgresql+psycopg://test@/postgres?host={folder}")
    with Session(engine) as session, session.begin():
        SqlGuard(session).check("orders/alchemy", 18)
    with pytest.raises(StaleFenceError), engine.begin() as connection:
        SqlGuard(connection).check("orders/alchemy", 17)
    engine.dispose()


def test_redis_refuses_a_late_holder(redis_client: Any, fencelock_cluster: LocalCluster) -> None:
    late, present = late_and_present(fencelock_cluster, "orders/1")
    guard = RedisGuard(redis_client)
    replies = guard.write("orders/1", present, ("SET", "orders:1", "paid"), ("INCR", "paid"))
    assert replies == [b"OK", 1]
    with pytest.raises(StaleFenceError, match=f"{late}.*{present}"):
        guard.write("orders/1", late, ("SET", "orders:1", "late"))
    assert redis_client.get("orders:1") == b"paid"
    guard.check("orders/1", present)
    with pytest.raises(StaleFenceError):
        guard.check("orders/1", late)


def test_redis_compares_fences_that_a_double_cannot_hold(redis_client: Any) -> None:
    guard = RedisGuard(redis_client)
    guard.check("high", 2**63 - 1)
    with pytest.raises(StaleFenceError) as refused:
        guard.check("high", 2**63 - 2)
    assert refused.value.highest == 2**63 - 1
    guard.check("digits", 9)
    guard.check("digits", 10)
    assert isinstance(refused.value, fencelock.FencelockError)


# Connections of asyncio: each context is one transaction, or none


@asynccontextmanager
async def of_asyncpg(where: str, *, begun: bool = True) -> AsyncGenerator[Any]:
    known = conninfo_to_dict(where)
    own: Any = await asyncpg.connect(
        host=known["host"], user=known["user"], database=known["dbname"]
    )
    try:
        if not begun:
            yield own
            return
        async with own.transaction():
            yield own
    finally:
        await own.close()


@asynccontextmanager
async def of_psycopg(where: str, *, begun: bool = True) -> AsyncGenerator[Any]:
    connecting = psycopg.AsyncConnection.connect(where, autocommit=not begun)
    async with await connecting as own:
        yield own


@asynccontextmanager
async def of_sqlalchemy(where: str, *, begun: bool = True) -> AsyncGenerator[Any]:
    known = conninfo_to_dict(where)
    url = f"postgresql+psycopg://{known['user']}@/{known['dbname']}?host={known['host']}"
    engine = create_async_engine(url, isolation_level=None if begun else "AUTOCOMMIT")
    try:
        async with AsyncSession(engine) as session:
            yield session
            await session.commit()
    finally:
        await engine.dispose()


Opened = Callable[..., AbstractAsyncContextManager[Any]]
ASYNCHRONOUS = pytest.mark.parametrize("opened", [of_asyncpg, of_psycopg, of_sqlalchemy])


@ASYNCHRONOUS
async def test_asynchronous_connections_refuse_late_holders(postgres: str, opened: Opened) -> None:
    resource = f"late/{opened.__name__}"

    async with opened(postgres) as own:
        await AsyncSqlGuard(own).create_table()
        await AsyncSqlGuard(own).check(resource, 17)
        await AsyncSqlGuard(own).check(resource, 18)
    with pytest.raises(StaleFenceError, match="fence 17 is stale, since fence 18"):
        async with opened(postgres) as own:
            await AsyncSqlGuard(own).check(resource, 17)
    async with opened(postgres) as own:
        await AsyncSqlGuard(own).check(resource, 18)


@ASYNCHRONOUS
async def test_an_asynchronous_check_outside_of_a_transaction_is_refused(
    postgres: str, opened: Opened
) -> None:
    async with opened(postgres, begun=False) as own:
        with pytest.raises(RuntimeError, match="autocommit is on"):
            await AsyncSqlGuard(own).check(f"alone/{opened.__name__}", 17)


@ASYNCHRONOUS
async def test_a_late_asynchronous_transaction_waits_for_the_present_one(
    postgres: str, opened: Opened
) -> None:
    resource = f"overtaken/{opened.__name__}"

    async with opened(postgres) as own:
        await AsyncSqlGuard(own).check(resource, 1)

    async def write_late() -> None:
        async with opened(postgres) as late:
            await AsyncSqlGuard(late).check(resource, 17)

    async with opened(postgres) as present:
        await AsyncSqlGuard(present).check(resource, 18)
        waiting = asyncio.create_task(write_late())
        done, _ = await asyncio.wait({waiting}, timeout=0.2)
        assert not done
    with pytest.raises(StaleFenceError, match="fence 17 is stale"):
        await waiting
