"""`fencelock.contrib.django` in a real project, run by its ``manage.py``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import programs
from support.programs import run_to_end

from fencelock.testing import LocalCluster

MANAGE = """
import os, sys
from django.core.management import execute_from_command_line
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
execute_from_command_line(sys.argv)
"""

SETTINGS = """
SECRET_KEY = "of a test"
INSTALLED_APPS = ["fencelock.contrib.django", "shop"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite3"}}}}
FENCELOCK = {setting!r}
"""

PAY = """
import sys
from django.core.management.base import BaseCommand
from django.db import connection, transaction
from fencelock.contrib.django import lock
from fencelock.guard import SqlGuard

class Command(BaseCommand):
    def handle(self, **_):
        SqlGuard(connection).create_table()
        with lock("orders/42", timeout=30) as hold, transaction.atomic():
            SqlGuard(connection).check("orders/42", hold.fence)
            self.stdout.write(f"{hold.name}, held by {lock('orders/42').status().holder.label}")
"""


class Project:
    """A project of Django in a folder."""

    def __init__(self, folder: Path, setting: object) -> None:
        self.folder = folder
        commands = folder / "shop" / "management" / "commands"
        commands.mkdir(parents=True)
        for package in (commands, *list(commands.parents)[:2]):
            (package / "__init__.py").touch()
        (folder / "manage.py").write_text(MANAGE)
        (folder / "settings.py").write_text(SETTINGS.format(setting=setting))
        (commands / "pay.py").write_text(PAY)

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        # Only the settings name the cluster.
        variables = {k: v for k, v in os.environ.items() if not k.startswith("FENCELOCK_")}
        return run_to_end([sys.executable, "manage.py", *arguments], cwd=self.folder, env=variables)


@pytest.fixture
def project(fencelock_cluster: LocalCluster, tmp_path: Path) -> Project:
    programs.package("django", "it is in the extra 'django'")
    return Project(tmp_path, {"addresses": [fencelock_cluster.addresses], "label": "the shop"})


def test_the_setting_names_the_cluster_and_the_guard_is_in_the_transaction(
    project: Project, fencelock_cluster: LocalCluster
) -> None:
    ended = project.manage("pay")
    assert ended.stdout == "orders/42, held by the shop\n", ended.stderr
    assert not fencelock_cluster.connect().lock("orders/42").locked()


def test_withlock_runs_commands_locked(project: Project, fencelock_cluster: LocalCluster) -> None:
    shell = ("sh", "-c", 'echo "$FENCELOCK_NAME $FENCELOCK_FENCE"; exit 3')
    with fencelock_cluster.connect(label="another").lock("nightly") as hold:
        ended = project.manage("withlock", "nightly", "--nonblock", "--", *shell)
        assert (ended.returncode, ended.stdout) == (75, "")
        assert "another" in ended.stderr
    ended = project.manage("withlock", "nightly", "--", *shell)
    name, fence = ended.stdout.split()
    assert (name, ended.returncode) == ("nightly", 3)
    assert int(fence) > hold.fence
    assert "--nonblock" in project.manage("withlock", "--help").stdout


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"adresses": "tcp://10.0.0.1:4040"}, "FENCELOCK: .*'adresses'"),
        ({"ttl": 0}, "FENCELOCK: ttl is 0, and must be from 1 to 3600"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(tmp_path: Path, setting: object, why: str) -> None:
    programs.package("django", "it is in the extra 'django'")
    ended = Project(tmp_path, setting).manage("check")
    assert ended.returncode != 0
    assert re.search(why, ended.stderr.splitlines()[-1])
