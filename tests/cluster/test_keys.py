"""Key files: who may read them, what they must say, and where nodes serve without any."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.collected import Lines
from typer.testing import CliRunner

from fencelock import ConfigError
from fencelock.actors.proxy.access import CLIENT, NODE, OPERATOR, Rights
from fencelock.cluster.cli.main import app
from fencelock.cluster.keys import (
    add_key,
    client_key,
    make_folder,
    node_keys,
    read_key,
    read_list,
    remove_key,
)
from fencelock.cluster.node.config import parse
from fencelock.cluster.node.node import Node
from fencelock.cluster.node.storage.journal import Journal
from fencelock.cluster.testing.ports import free_ports

IN_MEMORY = """
cluster = "c"
protocol = "paxos"
paxos.durability = "memory"
nodes.n1.address = "{}"
"""


CHANGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda keys: (keys / "keys.toml").unlink(), '"fencelock keys init"'),
    (lambda keys: (keys / "n1.key").unlink(), "n1.key does not exist"),
    (lambda keys: (keys / "keys.toml").write_text("server = 1"), "server: Input should be"),
    (lambda keys: (keys / "keys.toml").write_text("server"), "is not usable"),
    (lambda keys: (keys / "n1.key").write_bytes(b"\xff"), "is not usable"),
    (lambda keys: (keys / "keys.toml").write_text("x = " + "[" * 5_000), "is not usable"),
    (lambda keys: (keys / "n2.key").replace(keys / "n1.key"), "does not list the key"),
    (lambda keys: remove_key(keys, "n1"), "n1.key does not exist"),
    (lambda keys: (keys / "alice.key").replace(keys / "n1.key"), "does not list the key"),
]
"""Changes of the folder of a node's keys, and a part of the error that names each."""


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Return a folder with the keys of two nodes, a client and an operator."""
    folder = tmp_path / "keys"
    make_folder(folder, ["n1", "n2"])
    add_key(folder, Rights("shop", CLIENT, ("orders/", 'a"\\é')))
    add_key(folder, Rights("alice", OPERATOR))
    return folder


def test_secrets_and_the_list_are_for_their_owner_only(keys: Path) -> None:
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    names = {file.name: stat.S_IMODE(file.stat().st_mode) for file in keys.iterdir()}
    assert set(names.values()) == {0o600}
    found = {"keys.toml", "_server.key", "n1.key", "n2.key", "shop.key", "alice.key"}
    assert set(names) == found


def test_the_list_has_no_secret_and_shows_who_may_do_what(keys: Path) -> None:
    text = (keys / "keys.toml").read_text()
    for name in ("_server", "n1", "shop"):
        key = read_key(keys / f"{name}.key")
        assert key.public in text
        assert key.secret not in text
    assert read_list(keys).rights == (
        Rights("n1", NODE),
        Rights("n2", NODE),
        Rights("shop", CLIENT, ("orders/", 'a"\\é')),
        Rights("alice", OPERATOR),
    )
    assert sorted(read_list(keys).bound.values()) == ["alice@", "n1", "n2", "shop@"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_secret_that_others_may_read_is_refused(keys: Path, mode: int) -> None:
    for name in ("n1", "shop"):
        path = keys / f"{name}.key"
        path.chmod(mode)
        with pytest.raises(ConfigError, match=f"{path}: other users may .*chmod 600 {path}"):
            read_key(path)


def test_a_list_that_others_may_change_is_refused(keys: Path) -> None:
    (keys / "keys.toml").chmod(0o644)
    node_keys(keys, "n1")
    (keys / "keys.toml").chmod(0o664)
    with pytest.raises(ConfigError, match="other users may change it"):
        node_keys(keys, "n1")


@pytest.mark.parametrize("name", ["keys.toml", "n1.key", "."])
def test_keys_of_others_are_refused(keys: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    os.chown(keys / name, 10002, -1)
    with pytest.raises(ConfigError, match="belongs to the user with the number 10002"):
        node_keys(keys, "n1")
    monkeypatch.setattr(os, "geteuid", lambda: 10002)
    read_list(keys)


@pytest.mark.parametrize("mode", [0o707, 0o770, 0o720])
def test_a_folder_in_which_others_may_replace_keys_is_refused(keys: Path, mode: int) -> None:
    keys.chmod(mode)
    with pytest.raises(ConfigError, match=r"may change it.*chmod go-w"):
        node_keys(keys, "n1")


@pytest.mark.parametrize("mode", [0o1777, 0o1770, 0o755])
def test_a_folder_in_which_others_may_not_replace_keys_is_used(keys: Path, mode: int) -> None:
    """In a sticky folder only the owner of a file may replace it, as where Kubernetes mounts."""
    keys.chmod(mode)
    node_keys(keys, "n1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_group_may_read_a_secret_of_root(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (keys / "shop.key").chmod(0o440)
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    client_key(keys / "shop.key")
    (keys / "shop.key").chmod(0o444)
    with pytest.raises(ConfigError, match="may read it"):
        client_key(keys / "shop.key")


@pytest.mark.parametrize(("change", "text"), CHANGES)
def test_unusable_keys_are_named(keys: Path, change: Callable[[Path], object], text: str) -> None:
    change(keys)
    with pytest.raises(ConfigError, match=text):
        node_keys(keys, "n1")


def test_the_key_of_a_node_is_none_for_clients(keys: Path) -> None:
    with pytest.raises(
        ConfigError, match="is the key of a node, and a client needs one of its own"
    ):
        client_key(keys / "n1.key")


@pytest.mark.parametrize(
    ("rights", "text"),
    [
        (Rights("shop", CLIENT), "has a key"),
        (Rights("a@b", CLIENT), "cannot name a key"),
        (Rights("_server", CLIENT), "cannot name a key"),
        (Rights("", CLIENT), "cannot name a key"),
        (Rights("../up", CLIENT), "cannot name a key"),
        (Rights("bob", "king"), "must be one of client, operator, node"),
        (Rights("n3", NODE, ("orders/",)), "a node serves all names"),
        (Rights("bob", OPERATOR, ("orders/",)), "an operator sees all"),
        (Rights("bob", CLIENT, ("",)), "--prefix is ''"),
        (Rights("bob", CLIENT, ("x" * 257,)), "1 to 256 bytes"),
    ],
)
def test_keys_that_cannot_be_are_refused(keys: Path, rights: Rights, text: str) -> None:
    before = (keys / "keys.toml").read_text()
    with pytest.raises(ConfigError, match=text):
        add_key(keys, rights)
    assert (keys / "keys.toml").read_text() == before


@pytest.mark.parametrize("role", [OPERATOR, NODE])
def test_a_list_limits_only_clients_to_prefixes(keys: Path, role: str) -> None:
    path = keys / "keys.toml"
    path.write_text(path.read_text().replace('role = "client"', f'role = "{role}"'))
    with pytest.raises(ConfigError, match=rf"shop: .*the role {role} is for all names"):
        read_list(keys)


def test_keys_that_are_added_and_removed_at_once_are_all_kept(keys: Path) -> None:
    added = [f"k{number}" for number in range(12)]
    with ThreadPoolExecutor(13) as threads:
        writes = [threads.submit(add_key, keys, Rights(name, CLIENT)) for name in added]
        removed = threads.submit(remove_key, keys, "shop")
        for write in writes:
            write.result()
        removed.result()
    assert set(read_list(keys).keys) == {"n1", "n2", "alice", *added}


def test_a_key_not_listed_leaves_no_secret(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fails)
        with pytest.raises(ConfigError, match="cannot be written"):
            add_key(keys, Rights("bob", CLIENT))
    assert not (keys / "bob.key").exists()
    add_key(keys, Rights("bob", CLIENT))


def test_the_commands_make_list_and_remove_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, list(words), env={"COLUMNS": "120", "NO_COLOR": "1"})
        assert done.exception is None, done.exception
        return done.stdout

    run("init")
    assert run("keys", "init").startswith(
        "Wrote keys: the keys of n1, n2, n3. Now set in cluster.toml, under [security]:\n"
        '  keys = "keys"\n'
    )
    added = run("keys", "add", "shop", "--prefix", "a/", "--prefix", "b/").splitlines()
    assert added[0] == "Wrote keys/shop.key: the secret key of shop, with the role client."
    assert added[-1].endswith("what stays in the cluster: fencelock keys quota shop")
    run("keys", "add", "alice", "--role", "operator", "--out", "mine.key")
    assert client_key(Path("mine.key")).role == OPERATOR
    listed = run("keys", "list")
    assert ["shop", "client", "a/"] in [line.split()[:3] for line in listed.splitlines()]
    removed = run("keys", "remove", "shop")
    assert removed.startswith("Removed shop from keys/keys.toml.\n")
    assert "SIGHUP" in removed
    assert "shop" not in run("keys", "list", "--json")
    assert not Path("keys/shop.key").exists()


def test_a_node_without_keys_serves_on_loopback_only(tmp_path: Path, lines: Lines) -> None:
    port = free_ports(1)[0]
    text = IN_MEMORY.format(f"tcp://127.0.0.1:{port}")
    text += f'nodes.n1.listen = "tcp://0.0.0.0:{port}"\n'
    with pytest.raises(ConfigError, match=r"serves on loopback only.*fencelock keys init"):
        Node.start(parse(text, tmp_path), "n1", found=True)
    for _ in range(2):
        Node.start(parse(f"{text}[security]\ninsecure = true", tmp_path), "n1", found=True).stop()
    warned = [
        level for level, _, line in lines.values if "without keys, as insecure = true" in line
    ]
    assert warned == ["WARNING", "WARNING"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.0.1", "[::1]", "localhost"])
def test_loopback_needs_no_keys(host: str, tmp_path: Path) -> None:
    port = free_ports(1)[0]
    text = IN_MEMORY.format(f"tcp://{host}:{port}")
    try:
        Node.start(parse(text, tmp_path), "n1", found=True).stop()
    except ConfigError as error:
        assert "cannot listen" in str(error)  # noqa: PT017  # A machine without IPv6.


def test_keys_and_insecure_contradict_each_other(tmp_path: Path) -> None:
    text = IN_MEMORY.format("tcp://127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"security.insecure: true is not usable"):
        parse(f'{text}[security]\nkeys = "k"\ninsecure = true', tmp_path)


def test_files_of_init_and_of_a_journal_are_for_their_owner_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    former = os.umask(0o022)
    try:
        assert CliRunner().invoke(app, ["init"]).exit_code == 0
        Journal.open(Path("data") / "n1").close()
    finally:
        os.umask(former)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    folders = {"data": 0o700, "n1": 0o700}
    assert modes == folders | dict.fromkeys(modes.keys() - folders.keys(), 0o600)
    assert len(modes) > len(folders) + 1
