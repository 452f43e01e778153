"""Everything that a service needs to put a role of its own on a node: docs/own-roles.md.

For example::

    class Tally(Message, tag=0x1000):
        done: Int64

    class AddJob(RoleRequest[Tally], tag=0x1001):
        name: str

    class Jobs(Role[AddJob]):
        def __init__(self, address: Address, host: Host) -> None:
            super().__init__(address, host)
            self.done = 0

        def handle(self, sender: Address, event: AddJob, now: Instant) -> Effects:
            self.done += 1
            return [Send(sender, Tally(done=self.done))]

    node.add_role(Jobs)
    client.ref("n1/jobs").ask(AddJob(name="report"), timeout=1).done
"""

# ruff: noqa: PLC0414 (a name that is imported as itself is public)

from fencelock.actors.api.lock_message import Abandon as Abandon
from fencelock.actors.api.role_request import RoleRequest as RoleRequest
from fencelock.actors.effect import Effects as Effects
from fencelock.actors.effect import Observe as Observe
from fencelock.actors.effect import Retire as Retire
from fencelock.actors.effect import Send as Send
from fencelock.actors.effect import Spawn as Spawn
from fencelock.actors.effect import Wake as Wake
from fencelock.actors.message import NS_PER_MS as NS_PER_MS
from fencelock.actors.message import Address as Address
from fencelock.actors.message import Instant as Instant
from fencelock.actors.message import Int64 as Int64
from fencelock.actors.message import Local as Local
from fencelock.actors.message import Message as Message
from fencelock.actors.message import Timer as Timer
from fencelock.actors.message import address_of as address_of
from fencelock.actors.message import ms_between as ms_between
from fencelock.actors.message import node_of as node_of
from fencelock.actors.message import role_of as role_of
from fencelock.actors.role import Facts as Facts
from fencelock.actors.role import Host as Host
from fencelock.actors.role import Role as Role
from fencelock.actors.role import Summary as Summary
from fencelock.actors.role_message import LinkDown as LinkDown
from fencelock.actors.role_message import LinkUp as LinkUp
