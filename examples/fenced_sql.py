"""A fenced write into an SQL database: python examples/fenced_sql.py

A worker is paused while it holds a lock, and another one gets the lock and writes. When the first
worker continues, the database refuses its write: its fence is lower. It runs in one process and in
memory; put your own connection and cluster in.
"""

from __future__ import annotations

import sqlite3

from fencelock.guard import SqlGuard, StaleFenceError
from fencelock.testing import local, lose


def set_state(database: sqlite3.Connection, state: str, fence: int) -> None:
    """Write ``state`` in one transaction with the check of ``fence``."""
    with database:
        SqlGuard(database).check("orders/42", fence)
        database.execute("UPDATE orders SET state = ? WHERE id = 42", (state,))


def main() -> None:
    database = sqlite3.connect(":memory:")
    database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)")
    database.execute("INSERT INTO orders VALUES (42, 'new')")
    SqlGuard(database).create_table()
    with local() as cluster:
        paused = cluster.connect().lock("orders/42").acquire()
        assert paused
        lose(paused)  # As after a pause that was longer than the session.
        with cluster.connect().lock("orders/42") as hold:
            set_state(database, "paid", hold.fence)
        try:
            set_state(database, "cancelled", paused.fence)
        except StaleFenceError as error:
            print(f"refused: {error}")
    ((state,),) = database.execute("SELECT state FROM orders WHERE id = 42")
    print(f"the order is {state}")
    database.close()


if __name__ == "__main__":
    main()
