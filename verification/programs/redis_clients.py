"""Locks of libraries for Redis at one address: they acquire, contend, extend, release, expire.

    python verification/programs/redis_clients.py --port 6379 pottery redlock_py

Without names, all libraries are tried. The exit status is 0 if each lock kept its promise. A
library that is not installed is an error: the extra ``redis`` has them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

SHORT_S = 0.4
"""A duration that is allowed to pass (s)."""
LONG_S = 20


def address(port: int) -> str:
    return f"redis://127.0.0.1:{port}/0"


def client_of(port: int) -> Any:
    return import_module("redis").Redis.from_url(address(port))


def expired(client: Any, key: str) -> None:
    """Wait until a key is gone: its own time to live says when to look."""
    while (left_ms := client.pttl(key)) != -2:
        time.sleep(max(left_ms, 1) / 1_000)


def redis_py(port: int) -> None:
    client = client_of(port)
    errors = import_module("redis.exceptions")
    one, other = (client.lock("redis-py", timeout=LONG_S) for _ in range(2))
    assert one.acquire()
    assert not other.acquire(blocking=False)
    assert one.extend(10)
    assert one.reacquire()
    one.release()
    brief = client.lock("redis-py", timeout=SHORT_S)
    assert brief.acquire()
    expired(client, "redis-py")
    assert other.acquire(blocking=False)
    refused(errors.LockNotOwnedError, brief.release)
    other.release()


def refused(error: type[Exception], act: Callable[[], object]) -> None:
    """Return if ``act`` raises ``error``."""
    try:
        act()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def pottery(port: int) -> None:
    redlock: Any = import_module("pottery").Redlock
    masters = {client_of(port)}
    one, other = (
        redlock(key="printer", masters=masters, auto_release_time=SHORT_S) for _ in range(2)
    )
    assert one.acquire(timeout=LONG_S)
    assert not other.acquire(blocking=False)
    assert one.locked() > 0
    one.extend()
    one.release()
    assert other.acquire(timeout=LONG_S)
    expired(client_of(port), "redlock:printer")
    assert not other.locked()
    with redlock(key="printer", masters=masters):
        assert not one.acquire(blocking=False)


def redlock_py(port: int) -> None:
    redlock: Any = import_module("redlock").Redlock
    servers = [{"host": "127.0.0.1", "port": port, "db": 0}]
    one, other = (redlock(servers, retry_count=1) for _ in range(2))
    held = one.lock("redlock-py", LONG_S * 1_000)
    assert held
    assert not other.lock("redlock-py", LONG_S * 1_000)
    one.unlock(held)
    first = other.lock("redlock-py", int(SHORT_S * 1_000))
    assert first
    expired(client_of(port), "redlock-py")
    second = one.lock("redlock-py", LONG_S * 1_000)
    assert second
    other.unlock(first)  # It is no longer his.
    assert not other.lock("redlock-py", 1_000)
    one.unlock(second)


def django_redis(port: int) -> None:
    """django-redis: `cache.lock`, and `cache.add` as a lock."""
    backend = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": address(port)}
    import_module("django.conf").settings.configure(CACHES={"default": backend})
    cache: Any = import_module("django.core.cache").cache
    with cache.lock("job", timeout=LONG_S):
        assert not cache.lock("job", timeout=LONG_S).acquire(blocking=False)
    lock = cache.lock("job", timeout=LONG_S)
    assert lock.acquire(blocking=False)
    lock.extend(LONG_S)
    lock.release()
    assert cache.add("once", "me", LONG_S)
    assert not cache.add("once", "you", LONG_S)
    assert cache.get("once") == "me"
    cache.delete("once")


def celery_once(port: int) -> None:
    queued: Any = import_module("celery_once").AlreadyQueued
    backend = import_module("celery_once.backends").Redis({"url": address(port)})
    backend.raise_or_lock("qo_task", LONG_S)
    refused(queued, lambda: backend.raise_or_lock("qo_task", LONG_S))
    backend.clear_lock("qo_task")
    backend.raise_or_lock("qo_task", SHORT_S)
    expired(client_of(port), "qo_task")
    backend.raise_or_lock("qo_task", LONG_S)
    backend.clear_lock("qo_task")


def celery_redbeat(port: int) -> None:
    """celery-redbeat: the lock that lets one of several schedulers work."""
    app: Any = import_module("celery").Celery("app", broker=address(port))
    app.conf.update(redbeat_redis_url=address(port))
    client: Any = import_module("redbeat.schedulers").get_redis(app)
    one, other = (client.lock("redbeat::lock", timeout=LONG_S) for _ in range(2))
    assert one.acquire(blocking=False)
    assert not other.acquire(blocking=False)
    one.extend(LONG_S)
    one.release()


def aioredlock(port: int) -> None:
    package: Any = import_module("aioredlock")

    async def contend() -> None:
        one, other = (package.Aioredlock([address(port)], retry_count=n) for n in (3, 1))
        lock = await one.lock("aioredlock", lock_timeout=LONG_S)
        assert lock.valid
        try:
            await other.lock("aioredlock", lock_timeout=LONG_S)
        except package.LockError:
            pass
        else:
            raise AssertionError("two holders")
        await one.extend(lock)
        assert await one.is_locked("aioredlock")
        await one.unlock(lock)
        await other.unlock(await other.lock("aioredlock", lock_timeout=LONG_S))
        await one.destroy()
        await other.destroy()

    asyncio.run(contend())


def python_redis_lock(port: int) -> None:
    """python-redis-lock: its waits are waits in the queue of the lock."""
    package: Any = import_module("redis_lock")
    client = client_of(port)
    holder = package.Lock(client, "job", expire=LONG_S)
    assert holder.acquire()
    assert not package.Lock(client, "job", expire=LONG_S).acquire(blocking=False)
    served: list[int] = []

    def wait(number: int) -> None:
        own = client_of(port)
        lock = package.Lock(own, "job", expire=LONG_S)
        assert lock.acquire(timeout=LONG_S)
        served.append(number)
        lock.release()

    threads: list[threading.Thread] = []
    for number in range(3):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        while blocked(client) <= number:  # In this order they enter the queue.
            time.sleep(0.01)
    holder.extend(LONG_S)
    holder.release()
    for thread in threads:
        thread.join()
    assert served == [0, 1, 2], served
    holder.acquire()
    refused(package.NotAcquired, package.Lock(client, "job", expire=1).release)
    package.reset_all(client)
    assert package.Lock(client, "job", expire=1).acquire(blocking=False)
    package.reset_all(client)


def blocked(client: Any) -> int:
    """Return how many clients wait for a turn."""
    return int(client.info()["blocked_clients"])


LIBRARIES: dict[str, Callable[[int], None]] = {
    one.__name__: one
    for one in (
        redis_py,
        pottery,
        redlock_py,
        django_redis,
        celery_once,
        celery_redbeat,
        aioredlock,
        python_redis_lock,
    )
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("names", nargs="*", choices=[*LIBRARIES, []])
    options = parser.parse_args()
    for name in options.names or LIBRARIES:
        LIBRARIES[name](options.port)
        print(f"{name}: its lock keeps its promise")
    return 0


if __name__ == "__main__":
    sys.exit(main())
