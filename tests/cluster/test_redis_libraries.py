"""Libraries that lock with Redis, unchanged, at a Redis door: their own tests, and programs."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest
from support.paths import EXAMPLES, PROGRAMS
from support.programs import package, program, run_to_end
from support.redis_door import door_node, port_of

PACKAGES = {
    "redis_py": "redis",
    "pottery": "pottery",
    "redlock_py": "redlock",
    "django_redis": "django_redis",
    "celery_once": "celery_once",
    "celery_redbeat": "redbeat",
    "aioredlock": "aioredlock",
    "python_redis_lock": "redis_lock",
}
"""The package that each library imports."""


def run(*command: str, cwd: Path | None = None, **environment: str) -> str:
    """Run a program; return what it printed, or fail with that."""
    done = run_to_end(command, cwd=cwd, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_locks_of_libraries_keep_their_promises() -> None:
    for name in PACKAGES.values():
        package(name)
    clients = str(PROGRAMS / "redis_clients.py")
    with door_node() as node:
        printed = run(sys.executable, clients, "--port", str(port_of(node)), *PACKAGES)
    assert printed.count("keeps its promise") == len(PACKAGES)


@pytest.mark.long
@pytest.mark.parametrize("release", ["3.1.0", "3.3.1", "3.5.0"])
def test_an_old_python_redis_lock_keeps_its_promise(tmp_path: Path, release: str) -> None:
    wanted = f"python-redis-lock=={release}"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    fetched = run_to_end([*pip, "--target", str(tmp_path), wanted])
    if fetched.returncode:
        pytest.skip(f"{wanted} cannot be fetched from the index of packages: {fetched.stderr}")
    path = os.pathsep.join((str(tmp_path), *filter(None, (os.environ.get("PYTHONPATH"),))))
    program = (str(PROGRAMS / "redis_clients.py"), "--port")
    with door_node() as node:
        port = str(port_of(node))
        printed = run(sys.executable, *program, port, "python_redis_lock", PYTHONPATH=path)
    assert "keeps its promise" in printed


@pytest.mark.long
def test_the_lock_tests_of_redis_py_pass(tmp_path: Path) -> None:
    """They come from the source distribution of the installed release."""
    wanted = f"redis=={version('redis')}"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "redis"]
    fetched = run_to_end([*pip, "--dest", str(tmp_path), wanted])
    if fetched.returncode:
        pytest.skip(f"{wanted} cannot be fetched from the index of packages: {fetched.stderr}")
    (archive,) = tmp_path.glob("redis-*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(tmp_path, filter="data")
    tests = ["tests/test_lock.py", "tests/test_asyncio/test_lock.py"]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:fencelock"]
    with door_node() as node:
        url = f"redis://127.0.0.1:{port_of(node)}/0"
        here = tmp_path / archive.name.removesuffix(".tar.gz")
        printed = run(
            *(sys.executable, "-m", "pytest", *options, *tests, "--redis-url", url),
            cwd=here,
            PYTHONPATH="",
        )
    assert " passed" in printed
    assert "failed" not in printed


REDLOCK_5 = """
const Redis = require('ioredis'), {default: Redlock} = require('redlock');
const pause = ms => new Promise(done => setTimeout(done, ms));
const refused = async act => {
  try { await act() } catch (error) { if (error.name === 'ExecutionError') return; throw error }
  throw new Error('a lock had two holders') };
(async () => {
  const client = new Redis(+process.argv[2]);
  const redlock = new Redlock([client], {retryCount: 2, retryDelay: 50});
  let one = await redlock.acquire(['a', 'b'], 20000);
  await refused(() => redlock.acquire(['b', 'c'], 500));
  one = await one.extend(20000);
  await one.release();
  one = await redlock.acquire(['b'], 200);
  await pause(400);
  const other = await redlock.acquire(['b'], 20000);
  await refused(() => one.release());
  await other.release();
  await redlock.using(['c'], 1000, async signal => {
    await pause(1300); if (signal.aborted) throw signal.error });
  await client.quit();
})().catch(error => { console.error(error); process.exit(1) });
"""

REDLOCK_4 = """
const Redis = require('ioredis'), Redlock = require('redlock');
const pause = ms => new Promise(done => setTimeout(done, ms));
const refused = async act => {
  try { await act() } catch (error) { if (error.name === 'LockError') return; throw error }
  throw new Error('a lock had two holders') };
(async () => {
  const client = new Redis(+process.argv[2]);
  const redlock = new Redlock([client], {retryCount: 2, retryDelay: 50});
  let one = await redlock.lock(['a', 'b'], 20000);
  await refused(() => redlock.lock('b', 500));
  one = await one.extend(20000);
  await one.unlock();
  one = await redlock.lock('b', 200);
  await pause(400);
  const other = await redlock.lock('b', 20000);
  await refused(() => one.unlock());
  await other.unlock();
  await client.quit();
})().catch(error => { console.error(error); process.exit(1) });
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("release", "code"), [("redlock@4.2.0", REDLOCK_4), ("redlock@5.0.0-beta.2", REDLOCK_5)]
)
def test_redlock_for_node_keeps_its_promise(release: str, code: str, tmp_path: Path) -> None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    npm = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(tmp_path)]
    fetched = run_to_end([*npm, "ioredis@5", release])
    if fetched.returncode:
        pytest.skip(f"{release} cannot be fetched from npm: {fetched.stderr}")
    (tmp_path / "program.js").write_text(code, encoding="utf-8")
    with door_node() as node:
        run("node", "program.js", str(port_of(node)), cwd=tmp_path)


@pytest.mark.long
def test_a_failover_gives_redis_two_holders_and_a_cluster_one() -> None:
    program("redis-server")
    printed = run(sys.executable, str(EXAMPLES / "redis_failover.py"))
    assert printed.splitlines() == [
        "Redis after its failover:     holders of 'job': alice, bob",
        "fencelock after its failover: holders of 'job': alice",
    ]
