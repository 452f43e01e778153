"""fencelock for asyncio: the same locks, awaited. Imported by name: ``import fencelock.aio``.

For example::

    async with fencelock.aio.connect("tcp://10.0.0.1:4040,tcp://10.0.0.2:4040") as client:
        async with client.lock("orders/42") as hold:
            await storage.write(order, fence=hold.fence)
"""

from fencelock.cluster.aio.client import *  # noqa: F403  # Its `__all__` is the only list of names.
from fencelock.cluster.aio.client import __all__  # noqa: F401
