"""A client process of a measurement: ``python -m fencelock.verification.bench.worker JOB``.

It prints a line of JSON when it is ready, begins when it reads a line, and prints its result as
a line. Where there is no natural end, a second line ends it. When standard input ends, the
process that started it is gone, and it ends too.
"""

from __future__ import annotations

import asyncio
import json
import sys

from fencelock.verification.bench import load, wire
from fencelock.verification.bench.job import Job, JobKind, read_job


def main() -> None:
    """Do the one job. An error ends the process, and its text is on standard error."""
    job = read_job(sys.argv[1])
    match job.kind:
        case JobKind.ECHO:
            wire.echo(_say)
        case JobKind.PING:
            _begin()
            _say(wire.ping(job))
        case JobKind.TASKS:
            from fencelock.verification.bench.tasks import tasks  # noqa: PLC0415 (not for the others)

            _say(asyncio.run(tasks(job, _begin)))
        case JobKind.FOLLOW:
            from fencelock.verification.bench.tasks import follow  # noqa: PLC0415 (as above)

            _say(asyncio.run(follow(job, _begin)))
        case JobKind.HOLD:
            from fencelock.verification.bench.held import hold  # noqa: PLC0415 (as above)

            _say(asyncio.run(hold(job, _say, sys.stdin.readline)))
        case JobKind.MIXED:
            from fencelock.verification.bench.mixed import mixed  # noqa: PLC0415 (as above)

            _say(mixed(job, _begin, _say))
        case JobKind.PROFILE:
            from fencelock.verification.bench.marked import marked_pairs  # noqa: PLC0415 (as above)

            _say(marked_pairs(job, _begin))
        case _:
            _say(_with_threads(job))


def _with_threads(job: Job) -> object:
    with load.connect(job) as client:
        _begin()
        match job.kind:
            case JobKind.PAIR:
                return load.pair(client, job)
            case JobKind.TURNS:
                return load.turns(client, job)
            case JobKind.RETAIN:
                return load.retained_memory(client, job)
            case JobKind.READ:
                return load.read(client, job)
            case JobKind.WATCH:
                return load.watch(client, job, sys.stdin.readline)
            case _:
                return load.rate(client, job)


def _begin() -> None:
    """Report that all is ready, and wait for the line that begins the measurement."""
    _say({})
    if not sys.stdin.readline():
        raise SystemExit("whoever started this process is gone")


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
