"""`fencelock backup` and `fencelock restore`: their questions, refusals and output."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.backup_header import HEADER
from typer.testing import CliRunner, Result

from fencelock.actors.error import ConfigError, FencelockError
from fencelock.actors.table.table import LockTable
from fencelock.cluster.cli import backup as cli
from fencelock.cluster.cli.exit_status import ExitStatus
from fencelock.cluster.cli.main import app
from fencelock.cluster.node.config import loopback, starting_config
from fencelock.cluster.node.storage.backup import (
    BackupDamagedError,
    BackupFailedError,
    BackupWriter,
)
from fencelock.transport.codec import encode


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "orders.backup"
    with BackupWriter(path, replace(HEADER, fence=0)) as writer:
        for part in LockTable().snapshot():
            writer.add(encode(part))
        writer.finish()
    return path


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return write_config(tmp_path, "orders-2")


def write_config(folder: Path, cluster: str) -> Path:
    path = folder / f"{cluster}.toml"
    path.write_text(starting_config(loopback(3), cluster=cluster), encoding="utf-8")
    return path


def run(*arguments: str | Path, answer: str = "", status: int = 0) -> Result:
    result = CliRunner().invoke(app, list(map(str, arguments)), input=answer)
    assert result.exit_code == status, (result.output, result.exception)
    return result


def refusal(*arguments: str | Path) -> FencelockError:
    error = run(*arguments, status=1).exception
    assert isinstance(error, FencelockError)
    return error


def test_a_file_is_checked_without_a_configuration(file: Path) -> None:
    out = run("restore", file, "--check").output
    assert 'is complete: cluster "orders" before slot 54, as of 2025-11-22' in out


def test_a_damaged_file_is_refused_with_the_part_and_the_byte(file: Path, config: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + b"!")
    error = refusal("restore", file, "--config", config)
    assert isinstance(error, BackupDamagedError)
    assert "damaged or cut off in part 1, at byte" in str(error)
    assert not (config.parent / "data").exists()


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    error = refusal("restore", tmp_path / "missing", "--check")
    assert isinstance(error, BackupFailedError)
    assert "missing cannot be read: No such file" in str(error)


def test_the_restored_folders_and_the_next_steps_are_printed(file: Path, config: Path) -> None:
    out = run("restore", file, "--config", config).output
    assert f"begin above {1 << 40}" in out
    assert f"fencelock serve --config {config} --id n3    # its data: {config.parent}" in out


def test_the_id_of_the_old_cluster_is_refused_with_another_one(file: Path, tmp_path: Path) -> None:
    error = refusal("restore", file, "--config", write_config(tmp_path, "orders"))
    assert isinstance(error, ConfigError)
    assert 'such as "orders-2"' in str(error)


def occupy(config: Path) -> Path:
    folder = config.parent / "data" / "n1"
    folder.mkdir(parents=True)
    (folder / "precious").write_text("kept")
    return folder


def test_folders_with_content_are_refused_without_force(file: Path, config: Path) -> None:
    folder = occupy(config)
    error = refusal("restore", file, "--config", config)
    assert f"{folder}: files that are no journal" in str(error)
    assert "--force" in str(error)


def test_force_says_what_may_be_lost_before_it_asks(
    file: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = occupy(config)
    monkeypatch.setattr(cli, "at_terminal", lambda: True)
    arguments = ("restore", file, "--config", config, "--force")

    out = run(*arguments, answer="n\n", status=ExitStatus.DECLINED).output

    assert out.index("What may be lost") < out.index("Replace the folders?")
    assert str(folder) in out
    assert "Nothing was changed." in out
    assert (folder / "precious").read_text() == "kept"
    run(*arguments, answer="y\n")
    assert (folder.with_name("n1.replaced-1") / "precious").read_text() == "kept"


def test_force_needs_somebody_to_ask_or_yes(file: Path, config: Path) -> None:
    folder = occupy(config)
    assert "add --yes" in str(refusal("restore", file, "--config", config, "--force"))
    assert "What may be lost" in run("restore", file, "--config", config, "--force", "--yes").output
    assert not (folder / "precious").exists()


def test_a_backup_replaces_no_file_and_needs_its_folder(file: Path, tmp_path: Path) -> None:
    where = ("--connect", "tcp://127.0.0.1:9")
    assert "exists already" in str(refusal("backup", file, *where))
    assert "there is no folder" in str(refusal("backup", tmp_path / "no" / "a", *where))
