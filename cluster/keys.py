"""The key files of a cluster: a list of public keys with their rights, and one secret file a key.

A folder has ``keys.toml``, the list, which every node reads; ``_server.key``, the key by which
clients and nodes recognize the cluster, on every node; and ``NAME.key``, on the machine of the node
or client of that name.

What is missing, not usable, or open to other users raises a `ConfigError` that says what to do.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple, Self, TypeVar

import zmq
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, model_validator

from fencelock.actors.api.name import LOCK_NAME_BYTES_MAX, NAME_END
from fencelock.actors.error import ConfigError
from fencelock.actors.proxy.access import CLIENT, NODE, OPERATOR, ROLES, Rights
from fencelock.transport.keys import LinkKey, ListedKeys
from fencelock.transport.posix import posix

F = TypeVar("F", bound=BaseModel)

LIST = "keys.toml"
SERVER = "_server"
"""The name of the cluster's own key; no other begins with ``_``."""

KEY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
PUBLIC = re.compile(r"[0-9A-Za-z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
"""A key of 32 bytes in Z85, the text form of ZeroMQ."""

FILE_MODE, FOLDER_MODE = 0o600, 0o700
NAME_ADVICE = "1 to 63 letters, digits and -, the first of them no -"


def _matching(pattern: re.Pattern[str]) -> AfterValidator:
    def check(value: str) -> str:
        if pattern.fullmatch(value) is None:
            raise ValueError(f"it does not match {pattern.pattern}")
        return value

    return AfterValidator(check)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ListedKey(_Strict):
    """One key in the list. Only a client's is limited to prefixes."""

    role: Annotated[str, _matching(re.compile("|".join(ROLES)))]
    public: Annotated[str, _matching(PUBLIC)]
    prefixes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_prefixes(self) -> Self:
        if self.prefixes and self.role != CLIENT:
            raise ValueError(
                f"a key with the role {self.role} is for all names: leave prefixes out"
            )
        return self


class KeyList(_Strict):
    """The file `LIST`: the public key of the cluster, and all other keys by name."""

    server: Annotated[str, _matching(PUBLIC)]
    keys: dict[Annotated[str, _matching(KEY_NAME)], ListedKey] = {}

    @property
    def rights(self) -> tuple[Rights, ...]:
        return tuple(Rights(name, one.role, one.prefixes) for name, one in self.keys.items())

    @property
    def bound(self) -> dict[str, str]:
        """The ids of links that each public key may use, for `KeyGuard`."""
        return {
            one.public: name if one.role == NODE else f"{name}{NAME_END}"
            for name, one in self.keys.items()
        }


class KeyFile(_Strict):
    """The secret file of one key."""

    name: Annotated[str, _matching(re.compile(f"{SERVER}|{KEY_NAME.pattern}"))]
    role: str
    public: Annotated[str, _matching(PUBLIC)]
    secret: Annotated[str, _matching(PUBLIC)]
    server: Annotated[str, _matching(PUBLIC)]

    @property
    def link(self) -> LinkKey:
        return LinkKey(self.public, self.secret, self.server)


class NodeKeys(NamedTuple):
    """The keys that a node needs."""

    link: LinkKey
    listed: ListedKeys
    rights: tuple[Rights, ...]


def node_keys(folder: Path, node: str) -> NodeKeys:
    known = read_list(folder)
    own, server = (read_key(folder / f"{name}.key") for name in (node, SERVER))
    if server.public != known.server or own.server != known.server:
        raise ConfigError(f"{folder}: its files are of different clusters")
    entry = known.keys.get(node)
    if entry is None or entry.role != NODE or entry.public != own.public:
        raise ConfigError(
            f"{folder / LIST} does not list the key in {folder / node}.key as that of a node: run "
            f'"fencelock keys add {node} --role node", or copy both files from one folder'
        )
    return NodeKeys(own.link, ListedKeys(server.secret, known.bound), known.rights)


class Passwords:
    """Checks passwords of clients that have no CURVE, at the Redis door: secrets of listed keys."""

    def __init__(self, known: KeyList) -> None:
        self.known = known

    def __call__(self, user: str, password: str) -> str | None:
        """Return the name of the key with this secret; ``user`` is the name, or empty for any.

        Nodes know public keys only, so they compute the one that belongs to the secret.
        """
        try:
            public = zmq.curve_public(password.encode()).decode()
        except (ValueError, TypeError, zmq.ZMQError):
            return None
        for name, one in self.known.keys.items():
            if one.public == public and one.role != NODE and user in ("", name):
                return name
        return None


def client_key(path: Path) -> KeyFile:
    own = read_key(path)
    if own.role not in (CLIENT, OPERATOR):
        raise ConfigError(
            f"{path} is the key of a {own.role}, and a client needs one of its own: "
            '"fencelock keys add NAME --role client" makes it'
        )
    return own


def read_list(folder: Path) -> KeyList:
    return _read(folder / LIST, KeyList, stat.S_IWGRP | stat.S_IWOTH)


def read_key(path: Path) -> KeyFile:
    return _read(path, KeyFile, stat.S_IRWXG | stat.S_IRWXO)


def _read(path: Path, kind: type[F], forbidden: int) -> F:
    try:
        with path.open("rb") as file:
            check_folder(path.parent)
            check_mode(path, os.fstat(file.fileno()), forbidden)
            return kind.model_validate(tomllib.load(file))
    except FileNotFoundError as error:
        raise ConfigError(
            f'{path} does not exist: "fencelock keys init" makes a cluster\'s keys, and '
            '"fencelock keys add NAME" one more'
        ) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{path} is not usable: {where}: {first['msg']}") from error
    except (ValueError, RecursionError) as error:  # It is no TOML, or no UTF-8.
        raise ConfigError(f"{path} is not usable: {error}") from error


def check_owner_of(path: Path, found: os.stat_result) -> None:
    """Refuse what belongs to another user, who could change it."""
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError(
            f"{path} belongs to the user with the number {found.st_uid}, who may change it: only "
            "files and folders of this process's user, or of root, are used"
        )


def check_folder(folder: Path) -> None:
    """Refuse a folder in which others may replace files; in a sticky one they cannot."""
    found = folder.stat()
    check_owner_of(folder, found)
    mode = stat.S_IMODE(found.st_mode)
    if (
        mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX
    ):  # Kubernetes mounts secrets as 1777.
        raise ConfigError(
            f"{folder}: other users may change it (its mode is {mode:04o}): run "
            f'"chmod go-w {folder}"'
        )


def check_mode(path: Path, found: os.stat_result, forbidden: int) -> None:
    """Refuse a file to which others have access.

    A file of root's may be readable by a group: so Kubernetes mounts secrets for other users.
    """
    check_owner_of(path, found)
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid == 0 and os.geteuid() != 0:
        forbidden &= ~stat.S_IRGRP
    if mode & forbidden:
        what = "change" if mode & forbidden & (stat.S_IWGRP | stat.S_IWOTH) else "read"
        raise ConfigError(
            f"{path}: other users may {what} it (its mode is {mode:04o}): run "
            f'"chmod 600 {path}", and if they may have read it, make a new key'
        )


def _new_key(name: str, role: str, server: str = "") -> KeyFile:
    """Return a new key, that of the cluster itself if ``server`` is empty."""
    if not zmq.has("curve"):
        raise ConfigError("this libzmq was built without CURVE: install pyzmq from a wheel")
    public, secret = (part.decode() for part in zmq.curve_keypair())
    return KeyFile(name=name, role=role, public=public, secret=secret, server=server or public)


def make_folder(folder: Path, nodes: Iterable[str]) -> None:
    if (folder / LIST).exists():
        raise ConfigError(f"{folder / LIST} exists already: a cluster has these keys")
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}") from error
    server = _new_key(SERVER, "server")
    write_key(folder / f"{SERVER}.key", server)
    write_list(folder, KeyList(server=server.public))
    for node in nodes:
        add_key(folder, Rights(node, NODE))


def add_key(folder: Path, rights: Rights, path: Path | None = None) -> Path:
    """Make one more key; return its secret file, ``path`` or one in the folder."""
    name, role, prefixes = rights
    if KEY_NAME.fullmatch(name) is None:
        raise ConfigError(f"{name!r} cannot name a key: {NAME_ADVICE} are allowed")
    if role not in ROLES:
        raise ConfigError(f"--role is {role!r}, and must be one of {', '.join(ROLES)}")
    if role == NODE and prefixes:
        raise ConfigError("--prefix: a node serves all names; leave it out")
    if role == OPERATOR and prefixes:
        raise ConfigError(
            "--prefix: an operator sees all sessions and backups, so all names; leave it out"
        )
    for prefix in prefixes:
        if not 1 <= len(prefix.encode(errors="replace")) <= LOCK_NAME_BYTES_MAX:
            raise ConfigError(
                f"--prefix is {prefix!r}, and must have 1 to {LOCK_NAME_BYTES_MAX} bytes; leave it "
                "out for all names"
            )
    path = path or folder / f"{name}.key"
    with _changing(folder) as known:
        if name in known.keys:
            raise ConfigError(f'{name!r} has a key: "fencelock keys remove {name}" removes it')
        key = _new_key(name, role, known.server)
        write_key(path, key)
        entry = ListedKey(role=role, public=key.public, prefixes=prefixes)
        try:
            write_list(folder, known.model_copy(update={"keys": {**known.keys, name: entry}}))
        except ConfigError:
            path.unlink(missing_ok=True)  # Else a second try would find it.
            raise
    return path


def remove_key(folder: Path, name: str) -> None:
    """Remove a key from the list, and its secret file from the folder."""
    with _changing(folder) as known:
        if name not in known.keys:
            listed = ", ".join(known.keys) or "none"
            raise ConfigError(f"{name!r} has no key in {folder / LIST}, which lists {listed}")
        rest = {other: entry for other, entry in known.keys.items() if other != name}
        write_list(folder, known.model_copy(update={"keys": rest}))
        (folder / f"{name}.key").unlink(missing_ok=True)


@contextmanager
def _changing(folder: Path) -> Generator[KeyList]:
    """Read the list, and let no other process change it before the body ends."""
    fcntl = posix("fcntl", "a change of the keys")
    read_list(folder)  # Refuses a folder without a list in words.
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield read_list(folder)
    finally:
        os.close(descriptor)


def write_key(path: Path, key: KeyFile) -> None:
    lines = [f"# The secret key of {key.name} ({key.role}). Only its owner may read this file."]
    lines += [f"{field} = {_toml(value)}" for field, value in key.model_dump().items()]
    write_private(path, "\n".join([*lines, ""]), replace=False)


def write_list(folder: Path, known: KeyList) -> None:
    lines = [
        "# Who may connect to the cluster, and as what: the same on every node. Nodes read it when",
        '# they start and on SIGHUP. "fencelock keys" changes it.',
        f"server = {_toml(known.server)}",
    ]
    for name, entry in known.keys.items():
        lines += [f"\n[keys.{name}]", f'role = "{entry.role}"', f"public = {_toml(entry.public)}"]
        if entry.prefixes:
            lines.append(f"prefixes = [{', '.join(map(_toml, entry.prefixes))}]")
    write_private(folder / LIST, "\n".join([*lines, ""]), replace=True)


def write_private(path: Path, text: str, *, replace: bool) -> None:
    """Write a file that only its owner may read; a reader never sees half of it."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        with os.fdopen(
            os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb"
        ) as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        if replace:
            partial.replace(path)
            return
        try:
            path.hardlink_to(partial)
        finally:
            partial.unlink()
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error


def _toml(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
