"""Fenced writes into an SQL database: the fence is checked in the transaction of the write."""

from __future__ import annotations

import re
import sys
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
            ``django.db.connection``, within ``transaction.atomic()``. For an ``AsyncSession``:
            ``await session.run_sync(lambda it: SqlGuard(it).check(...))``.
        table: the name of the table; it may have a schema. It becomes a part of the statements.
        paramstyle: the paramstyle of the DB-API module, if the module does not declare it.

    Raises:
        TypeError: the connection is asynchronous.
        ValueError: ``table`` or ``paramstyle`` is not allowed.

    """

    def __init__(self, connection: Any, table: str = TABLE, paramstyle: str | None = None) -> None:
        if not re.fullmatch(r"\w+(\.\w+)?", table):
            raise ValueError(f"table is {table!r}, and must be a plain name")
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
        while True:
            if self._execute(RAISE, resource=resource, fence=fence).rowcount == 1:
                break
            row = self._execute(READ, resource=resource).fetchone()
            if row is None:
                self._execute(ADD, resource=resource, fence=fence)
                break
            if row[0] > fence:
                raise StaleFenceError(resource, fence, int(row[0]))
            # Another transaction has added or raised it between the two statements.
        if self._is_idle():
            raise RuntimeError("autocommit is on: begin a transaction around check and write")

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
    """Return the name of the package that ``connection`` comes from."""
    return type(connection).__module__.partition(".")[0]


def _check_synchronous(connection: Any) -> None:
    """Return if the methods of ``connection`` do their work before they return.

    Raises:
        TypeError: they return coroutines.

    """
    methods = (getattr(connection, name, None) for name in ("commit", "execute"))
    if _module_of(connection) != "asyncpg" and not any(map(iscoroutinefunction, methods)):
        return
    name = f"{_module_of(connection)}.{type(connection).__name__}"
    if hasattr(connection, "run_sync"):
        advice = "await its run_sync(lambda it: SqlGuard(it).check(...))"
    else:
        advice = (
            "use a synchronous connection in a thread (asyncio.to_thread), or one of SQLAlchemy "
            "with run_sync"
        )
    raise TypeError(f"{name} is asynchronous, and SqlGuard is not: {advice}")
