"""Connections of Django, without a project, and what a guard must do with them."""

from __future__ import annotations

from typing import Any

import pytest

from fencelock.guard import SqlGuard, StaleFenceError
from support import programs


def django_connection(alias: str, database: dict[str, Any]) -> Any:
    """Return ``django.db.connections[alias]``, made with these settings."""
    programs.package("django")
    import django  # noqa: PLC0415 (optional)
    from django.conf import settings  # noqa: PLC0415 (optional)
    from django.db import connections  # noqa: PLC0415 (optional)

    if not settings.configured:
        settings.configure(SECRET_KEY="of a test")
        django.setup()
    made = connections.configure_settings({alias: database, "default": {}})
    connections.settings[alias] = made[alias]
    return connections[alias]


def protects_django(connection: Any) -> None:
    """Check that the guard is in the caller's transaction, and refuses to be in one of its own."""
    from django.db import transaction  # noqa: PLC0415 (optional)

    guard = SqlGuard(connection)
    guard.create_table()
    with pytest.raises(RuntimeError, match=rf"'{connection.alias}' is outside of atomic\(\)"):
        guard.check("orders/42", 21)
    with transaction.atomic(using=connection.alias):
        guard.check("orders/42", 18)
    with pytest.raises(StaleFenceError), transaction.atomic(using=connection.alias):
        guard.check("orders/42", 17)
    with transaction.atomic(using=connection.alias):
        guard.check("orders/42", 20)
        transaction.set_rollback(True, using=connection.alias)
    with transaction.atomic(using=connection.alias):
        guard.check("orders/42", 19)
    connection.set_autocommit(False)
    guard.check("orders/42", 19)
    connection.rollback()
    connection.close()
