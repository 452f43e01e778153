"""The scenes of the transcripts of `lamport` (`role_transcript.py`): the roles of node ``b``."""

from __future__ import annotations

from fencelock.actors import clock
from fencelock.actors.lamport import wire
from fencelock.actors.lamport.process import LockProcess
from fencelock.actors.lamport.reliable_channel import ReliableChannel
from fencelock.actors.message import Address
from fencelock.actors.proxy import event
from fencelock.actors.role import Host
from support.role_transcript import Scene, events_of

CLOCK, PROXY, PROCESS = Address("b/clock"), Address("b/proxy"), Address("b/process")
CHANNEL, OF_A = Address("b/channel"), Address("a/channel")
PROCESS_BOOT = 99
OURS, THEIRS = 11, 22
"""The lives of the channels."""

EVENTS = events_of(event, clock, wire)
IN_NODE = {"clock": CLOCK, "proxy": PROXY, "process": PROCESS, "channel": CHANNEL}


def make_process(host: Host) -> LockProcess:
    return LockProcess(PROCESS, host, node="b", boot=PROCESS_BOOT, clock=CLOCK, proxy=PROXY)


def make_channel(host: Host) -> ReliableChannel:
    return ReliableChannel(CHANNEL, host, node="b", boot=OURS, process=PROCESS)


WISH = {"lock": "x", "session": "s", "owner": "o", "query": 1}
WELCOME = {"boot": PROCESS_BOOT, "requests": (), "complete": True}
PARCEL = {"boot": THEIRS, "your_boot": OURS, "confirmed": 0, "node": "a", "nodes": ("a",)}
OF_PROCESS = Scene(make_process, EVENTS, IN_NODE, WISH | WELCOME, ("stamp", "waiters"))
OF_CHANNEL = Scene(make_channel, EVENTS, IN_NODE | {"a": OF_A}, {"lock": "x"} | PARCEL, ("stamp",))
SCENES = {
    "lamport-channel": OF_CHANNEL,
    "lamport-joining": OF_PROCESS,
    "lamport-process": OF_PROCESS,
}
