"""Fenced writes into an SQL database: the fence is checked in the transaction of the write."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator
from inspect import iscoroutinefunction
from typing import Any

from fencelock.actors.error import StaleFenceError
from fencelock.cluster.client.guard.guard import check_fence

TABLE = "fencelock_fences"

CREATE = (
    "CREATE TABLE IF NOT EXISTS {table} "
    "(resource VARCHAR(256) NOT NULL PRIMARY KEY, fence BIGINT NOT NULL)"
)
RAISE = "UPDATE {table} SET fence = :fence WHERE resource = :resource AND fence <= :fence"
READ = "SELECT fence FROM {table} WHERE resource = :resource"
ADD = "INSERT INTO {table} (resource, fence) VALUES (:resource, :fence)"

PARAMETER = re.compile(r":(\w+)")
STYLES = {"named": ":{}", "pyformat": "%({})s", "qmark": "?", "format": "%s"}
"""The forms of a parameter, by the ``paramstyle`` of a DB-API module."""

IDLE = 0
"""The status of a connection of psycopg that is in no transaction (libpq's)."""

AUTOCOMMIT = "autocommit is on: begin a transaction around check and write"

ROUNDS = 3
"""Tries to raise a fence. The second fails only if the row was added before the first had ended."""

Steps = Generator[tuple[str, dict[str, Any]], Any, None]
"""Yields a statement and its values. Takes the number of rows that it changed; of `READ`, its row,
or None."""


def checking(resource: str, fence: int) -> Steps:
    """Raise the highest fence of ``resource``, or refuse ``fence``: the statements of a check."""
    for _ in range(ROUNDS):
        if (yield RAISE, {"resource": resource, "fence": fence}) == 1:
            return
        row = yield READ, {"resource": resource}
        if row is None:
            yield ADD, {"resource": resource, "fence": fence}
            return
        if row[0] > fence:
            raise StaleFenceError(resource, fence, int(row[0]))
        # Another transaction has added it between the two statements.
    raise RuntimeError(
        f"the fence of {resource!r} is not above {fence}, and was not raised: with MySQL, connect "
        "with the client flag FOUND_ROWS, so that rows are counted that an UPDATE finds and leaves "
        "as they are; and begin the transaction with check, not with a read"
    )


def check_table(table: str) -> None:
    """Check the name of a table, which becomes a part of statements."""
    if not re.fullmatch(r"\w+(\.\w+)?", table):
        raise ValueError(f"table is {table!r}, and must be a plain name")


class SqlGuard:
    """Keeps the highest fence of each resource in a table, and checks it in your transaction.

    For example::

        with connection:  # one transaction
            SqlGuard(connection).check("orders/42", hold.fence)
            connection.execute("UPDATE orders SET state = ? WHERE id = 42", (state,))

    `check` updates the row of the resource, so the database itself lets transactions that write
    the same resource wait for each other, and refuses the one with the lower fence. When your
    transaction is rolled back, so is the fence.

    Args:
        connection: a DB-API connection, a ``Connection`` or ``Session`` of SQLAlchemy, or
            ``django.db.connection``, within ``transaction.atomic()``. For an asynchronous one see
            `AsyncSqlGuard`.
        table: the name of the table; it may have a schema. It becomes a part of the statements.
        paramstyle: the paramstyle of the DB-API module, if the module does not declare it.

    Raises:
        TypeError: the connection is asynchronous.
        ValueError: ``table`` or ``paramstyle`` is not allowed.

    """

    def __init__(self, connection: Any, table: str = TABLE, paramstyle: str | None = None) -> None:
        check_table(table)
        _check_synchronous(connection)
        self._connection = connection
        self._table = table
        module = _module_of(connection)
        self._is_alchemy = module == "sqlalchemy" or hasattr(connection, "get_bind")
        self._is_django = hasattr(connection, "in_atomic_block")
        default = "format" if self._is_django else "qmark"
        known: str = getattr(sys.modules[module], "paramstyle", default)
        self._style = paramstyle or known
        if self._style not in STYLES:
            raise ValueError(f"paramstyle is {self._style!r}, and must be of {', '.join(STYLES)}")

    def create_table(self) -> None:
        """Create the table of fences unless it exists; or do so with your migrations."""
        self._execute(CREATE)

    def check(self, resource: str, fence: int) -> None:
        """Raise the highest fence of ``resource`` in the current transaction; see `Guard.check`.

        Two transactions that write a new resource at the same instant may end with the driver's
        ``IntegrityError`` for one of them; repeat that transaction.

        Raises:
            RuntimeError: the connection is in autocommit mode and in no transaction, so the check
                would protect nothing.

        """
        check_fence(fence)
        if self._is_django and self._connection.get_autocommit():
            raise RuntimeError(
                f"the Django connection {self._connection.alias!r} is outside of atomic(), so the "
                "check would be in a transaction of its own: check and write within one "
                '"with transaction.atomic():"'
            )
        steps, result = checking(resource, fence), None
        try:
            while True:
                statement, values = steps.send(result)
                cursor = self._execute(statement, **values)
                result = cursor.fetchone() if statement is READ else cursor.rowcount
        except StopIteration:
            pass
        if self._is_idle():
            raise RuntimeError(AUTOCOMMIT)

    def _is_idle(self) -> bool:
        """Return whether the connection is known to be in no transaction after a statement."""
        connection = self._connection
        if self._is_alchemy:  # Its own transaction may be one in name only, over autocommit.
            made = connection.connection() if hasattr(connection, "get_bind") else connection
            connection = made.connection.driver_connection
        info = getattr(connection, "info", None)
        return (
            getattr(connection, "in_transaction", None) is False  # Of sqlite3.
            or getattr(info, "transaction_status", None) == IDLE  # Of psycopg.
        )

    def _execute(self, statement: str, **values: Any) -> Any:
        statement = statement.format(table=self._table)
        if self._is_alchemy:
            from sqlalchemy import text  # noqa: PLC0415 (optional)

            return self._connection.execute(text(statement), values)
        form, names = STYLES[self._style], PARAMETER.findall(statement)
        in_order = [values[name] for name in names]
        cursor = self._connection.cursor()
        named = "{}" in form
        statement = PARAMETER.sub(lambda found: form.format(found[1]), statement)
        cursor.execute(statement, values if named else in_order)
        return cursor


def _module_of(connection: object) -> str:
    return type(connection).__module__.partition(".")[0]


def _check_synchronous(connection: Any) -> None:
    methods = (getattr(connection, name, None) for name in ("commit", "execute"))
    if _module_of(connection) != "asyncpg" and not any(map(iscoroutinefunction, methods)):
        return
    name = f"{_module_of(connection)}.{type(connection).__name__}"
    raise TypeError(f"{name} is asynchronous, and SqlGuard is not: use AsyncSqlGuard")


class AsyncSqlGuard:
    """`SqlGuard` for ``asyncio``.

    For example::

        async with session.begin():  # one transaction
            await AsyncSqlGuard(session).check("orders/42", hold.fence)
            await session.execute(update(Order)...)

    Args:
        connection: an ``AsyncSession`` or ``AsyncConnection`` of SQLAlchemy, a connection of
            asyncpg, or an ``AsyncConnection`` of psycopg.
        table: see `SqlGuard`.

    Raises:
        TypeError: the connection is none of these.
        ValueError: ``table`` is not allowed.

    """

    def __init__(self, connection: Any, table: str = TABLE) -> None:
        check_table(table)
        module = _module_of(connection)
        if not hasattr(connection, "run_sync") and module not in {"asyncpg", "psycopg"}:
            name = f"{module}.{type(connection).__name__}"
            raise TypeError(f"{name} is no connection that AsyncSqlGuard knows")
        self._connection = connection
        self._table = table
        self._is_asyncpg = module == "asyncpg"

    async def create_table(self) -> None:
        """Create the table of fences unless it exists; or do so with your migrations."""
        if hasattr(self._connection, "run_sync"):
            await self._connection.run_sync(self._synchronous("create_table"))
        else:
            await self._connection.execute(CREATE.format(table=self._table))

    async def check(self, resource: str, fence: int) -> None:
        """Raise the highest fence of ``resource`` in the current transaction; see `SqlGuard.check`.

        Raises:
            RuntimeError: the connection is in no transaction, so the check would protect nothing.

        """
        check_fence(fence)
        connection = self._connection
        if hasattr(connection, "run_sync"):
            await connection.run_sync(self._synchronous("check"), resource, fence)
            return
        if self._is_asyncpg and not connection.is_in_transaction():
            raise RuntimeError(AUTOCOMMIT)
        steps, result = checking(resource, fence), None
        try:
            while True:
                result = await self._done(*steps.send(result))
        except StopIteration:
            pass
        if not self._is_asyncpg and connection.info.transaction_status == IDLE:
            raise RuntimeError(AUTOCOMMIT)

    def _synchronous(self, method: str) -> Callable[..., None]:
        def called(connection: Any, *values: Any) -> None:
            getattr(SqlGuard(connection, self._table), method)(*values)

        return called

    async def _done(self, statement: str, values: dict[str, Any]) -> Any:
        """Return what `Steps` take of a statement."""
        text = statement.format(table=self._table)
        if not self._is_asyncpg:
            cursor = await self._connection.execute(PARAMETER.sub(r"%(\1)s", text), values)
            return await cursor.fetchone() if statement is READ else cursor.rowcount
        names = list(values)
        text = PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", text)
        if statement is READ:
            return await self._connection.fetchrow(text, *values.values())
        return int((await self._connection.execute(text, *values.values())).split()[-1])
