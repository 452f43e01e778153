"""ZooKeeper: three servers with real fsync, locks by kazoo's Lock recipe."""

from __future__ import annotations

import re
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from fencelock.cluster.testing.ports import free_ports
from peers.peer import Handle, ReplicatedPeer, Spec, answers

JAR = Path("/usr/share/java/zookeeper.jar")
"""The path in Debian's package; the jar names its dependencies."""
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
SESSION_S = 10.0
CONNECT_S = 30.0
CONFIG = """\
tickTime=2000
initLimit=10
syncLimit=5
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=srvr
"""
LOGGING = """\
log4j.rootLogger=WARN, CONSOLE
log4j.appender.CONSOLE=org.apache.log4j.ConsoleAppender
log4j.appender.CONSOLE.layout=org.apache.log4j.PatternLayout
log4j.appender.CONSOLE.layout.ConversionPattern=%d %p %c - %m%n
"""


class ZooKeeper(ReplicatedPeer):
    """Three servers with the settings of the sample configuration."""

    name = "zookeeper"
    warm_s = 6.0
    """Java compiles what runs often only after a while."""
    packages = ("kazoo",)
    programs = (("java", "default-jre-headless"),)

    def missing(self) -> str | None:
        jar = None if JAR.exists() else "apt-get install zookeeper"
        return " and ".join(word for word in (jar, super().missing()) if word) or None

    def version(self) -> str:
        return f"ZooKeeper ({JAR.resolve().stem}), kazoo {metadata.version('kazoo')} Lock"

    def start(self, folder: Path) -> None:
        ports = free_ports(3 * self.count)
        self._ports, quorum, election = (ports[index::3] for index in range(3))
        members = "".join(
            f"server.{index + 1}=127.0.0.1:{quorum[index]}:{election[index]}\n"
            for index in range(self.count)
        )
        (folder / "log4j.properties").write_text(LOGGING, encoding="ascii")
        for index, port in enumerate(self._ports):
            data = folder / f"data-{index}"
            data.mkdir()
            (data / "myid").write_text(f"{index + 1}\n", encoding="ascii")
            own = f"dataDir={data}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            (folder / f"zoo-{index}.cfg").write_text(CONFIG + own + members, encoding="ascii")
        self.start_servers(folder)

    def leader(self) -> int | None:
        modes = [_mode(port) for port in self._ports]
        return modes.index("leader") if "leader" in modes else None

    def serves(self) -> bool:
        modes = [_mode(port) for port in self._ports]
        return sorted(modes) == ["follower"] * (self.count - 1) + ["leader"]

    def start_server(self, index: int) -> None:
        folder = self.servers.folder
        command = ["java", "-Xmx512m", f"-Dlog4j.configuration=file:{folder}/log4j.properties"]
        command += ["-cp", str(JAR), MAIN, str(folder / f"zoo-{index}.cfg")]
        self.servers.start(index, command)


def _mode(port: int) -> str:
    answer = answers(port, b"srvr") or b""
    found = re.search(rb"^Mode: (\w+)", answer, re.MULTILINE)
    return found[1].decode() if found else ""


class ZooKeeperConnection:
    """One session for all threads of a process."""

    def __init__(self, spec: Spec) -> None:
        client: Any = import_module("kazoo.client")
        hosts = ",".join(f"127.0.0.1:{port}" for port in spec["ports"])
        self._client: Any = client.KazooClient(hosts, timeout=SESSION_S, randomize_hosts=False)
        self._client.start(CONNECT_S)

    def lock(self, name: str) -> Handle:
        """Return kazoo's lock, which makes its node when first used."""
        return ZooKeeperHandle(self._client, f"/compare/{name}")

    def close(self) -> None:
        self._client.stop()
        self._client.close()


class ZooKeeperHandle:
    """Kazoo's Lock, and a new one after an error, since its state is then unknown."""

    def __init__(self, client: Any, path: str) -> None:
        self._lock: Any = client.Lock(path)
        self._broken = False

    def acquire(self) -> None:
        if self._broken:
            self._lock.release()
            self._broken = False
        self._broken = True
        self._lock.acquire()
        self._broken = False

    def release(self) -> None:
        self._broken = True
        self._lock.release()
        self._broken = False
