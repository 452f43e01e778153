"""Apply a log to a `LockTable` and print the outcome; run by several Pythons.

It reads a JSON array of ``[time_ms, tag, {field: value}]`` from standard input. It imports only
the table, msgspec and the standard library: ``fencelock`` is a bare namespace here, since the real
one imports ZeroMQ and CBOR. The first argument, if there is one, is a folder with msgspec.
"""

from __future__ import annotations

import json
import sys
import types
import unicodedata
from pathlib import Path

sys.path += sys.argv[1:]
package = types.ModuleType("fencelock")
package.__path__ = [str(Path(__file__).resolve().parent.parent.parent / "src" / "fencelock")]
sys.modules["fencelock"] = package

from fencelock.actors.api.lock_message import Granted, Reason  # noqa: E402
from fencelock.actors.message import REGISTRY  # noqa: E402
from fencelock.actors.table.snapshot import canonical_json  # noqa: E402
from fencelock.actors.table.table import LockTable  # noqa: E402


def main() -> None:
    table = LockTable()
    outcomes: list[str] = []
    digests: list[str] = []
    for number, (time_ms, tag, fields) in enumerate(json.load(sys.stdin)):
        command = REGISTRY[tag](**fields)
        outcomes += [canonical_json(one).decode() for one in table.apply(time_ms, command)]  # type: ignore[arg-type]
        if number % 50 == 0:
            digests.append(table.digest().hex())
            table = LockTable.restore(table.snapshot())
    digests.append(table.digest().hex())
    result = {
        "unicode": unicodedata.unidata_version,
        "grants": sum(outcome.startswith(f"[{Granted.TAG},") for outcome in outcomes),
        "invalid": sum(f",{Reason.INVALID:d}," in outcome for outcome in outcomes),
        "outcomes": outcomes,
        "digests": digests,
    }
    json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
