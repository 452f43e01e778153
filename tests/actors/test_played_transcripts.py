"""The transcripts in `transcripts/`, played again and compared.

The player of `table-*` is in `support/table_transcript.py`, that of `proxy-*` in
`support/proxy_transcript.py`, that of `paxos-proxy*` in `support/log_proxy_transcript.py`, that of
`bakery-proxy*` in `support/bakery_proxy_transcript.py`, that of `session-*` in
`support/session_transcript.py`, and that of other roles in `support/role_transcript.py`. Their
headers explain the notation.

``PYTHONPATH=src:tests python tests/actors/test_played_transcripts.py --rewrite`` writes the
outcomes of all commands anew.
"""

from __future__ import annotations

import sys

import pytest
from support import central_scene, lamport_scene, paxos_scene
from support.bakery_proxy_transcript import BakeryProxyPlayer
from support.log_proxy_transcript import LogProxyPlayer
from support.proxy_transcript import ProxyPlayer
from support.role_transcript import RolePlayer
from support.session_transcript import SessionPlayer
from support.table_scene import table_of_three
from support.table_transcript import TablePlayer
from support.transcript import FOLDER, Case, cases_of, rewrite

from fencelock.actors.table.table import LockTable

SCENES = central_scene.SCENES | lamport_scene.SCENES | paxos_scene.SCENES
FILES = sorted(FOLDER.glob("*.txt"))


def played(case: Case) -> str:
    with pytest.MonkeyPatch.context() as patch:
        if case.file.startswith("proxy-"):
            return case.played(ProxyPlayer(patch))
        if case.file.startswith("bakery-proxy"):
            return case.played(BakeryProxyPlayer(patch))
        if case.file.startswith("session-"):
            return case.played(SessionPlayer(patch))
        if case.file.startswith("paxos-proxy"):
            return case.played(LogProxyPlayer(patch))
        if case.file in SCENES:
            return case.played(RolePlayer(SCENES[case.file], patch))
        table = table_of_three() if case.before is None else LockTable()
        return case.played(TablePlayer(table, patch))


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=f"{case.file}: {case.title}")
        for file in FILES
        for case in cases_of(file)
    ],
)
def test_a_transcript_is_what_happens_now(case: Case) -> None:
    assert played(case) == case.text


if __name__ == "__main__":
    if sys.argv[1:] != ["--rewrite"]:
        sys.exit(f"usage: PYTHONPATH=src:tests python {sys.argv[0]} --rewrite")
    for file in FILES:
        rewrite(file, played)
