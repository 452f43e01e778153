"""Django: an app that configures the default client, and ``manage.py withlock``.

For example, in the settings::

    INSTALLED_APPS = [..., "fencelock.contrib.django"]
    FENCELOCK = {"addresses": "tcp://10.0.0.1:4040,tcp://10.0.0.2:4040", "ttl": 15}

The setting has the arguments of `fencelock.configure`; without it the environment names the
cluster. Then, in a view or anywhere else::

    with lock("orders/42", timeout=5) as hold:
        ...

Unlike that of ``cache.lock``, this ``timeout`` is how long to wait for the lock (s). A lock never
expires under its holder: it is held until it is released, or its process is gone for the ``ttl``.
"""

import fencelock

lock = fencelock.lock
