"""What a service needs to put a role of its own on a node: see docs/own-roles.md.

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

from fencelock.actors.api.message import Abandon
from fencelock.actors.api.role_request import RoleRequest
from fencelock.actors.effect import Effects, Observe, Retire, Send, Spawn, Wake
from fencelock.actors.message import (
    NS_PER_MS,
    Address,
    Instant,
    Int64,
    Local,
    Message,
    Timer,
    address_of,
    ms_between,
    node_of,
    role_of,
)
from fencelock.actors.role import Facts, Host, Role, Summary
from fencelock.actors.role_message import LinkDown, LinkUp

__all__ = [
    "NS_PER_MS",
    "Abandon",
    "Address",
    "Effects",
    "Facts",
    "Host",
    "Instant",
    "Int64",
    "LinkDown",
    "LinkUp",
    "Local",
    "Message",
    "Observe",
    "Retire",
    "Role",
    "RoleRequest",
    "Send",
    "Spawn",
    "Summary",
    "Timer",
    "Wake",
    "address_of",
    "ms_between",
    "node_of",
    "role_of",
]
