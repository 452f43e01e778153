"""``manage.py withlock NAME -- COMMAND``: ``fencelock lock`` on the cluster of the settings."""

from django.conf import settings
from django.core.management.base import BaseCommand

from fencelock.cluster.cli.start import main


class Command(BaseCommand):
    """Runs a command under a lock; options and exit statuses are those of ``fencelock lock``."""

    help = (
        "Run a command while a lock is held. `manage.py withlock --help` lists the options, which "
        "are those of `fencelock lock`; the setting FENCELOCK names the cluster."
    )
    requires_system_checks: tuple[str, ...] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Run what follows ``withlock``, and exit with its status."""
        given = dict(getattr(settings, "FENCELOCK", {}))
        addresses = given.get("addresses")
        if isinstance(addresses, list | tuple):
            addresses = ",".join(addresses)
        named = {
            "--connect": addresses,
            "--cluster": given.get("cluster"),
            "--key": given.get("key"),
        }
        options = [part for name, value in named.items() if value for part in (name, str(value))]
        main("lock", *options, *argv[2:])
