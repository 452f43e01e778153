"""The doorbell: one wake-up for any number of rings, also where there is no ``eventfd``."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fencelock.transport.polling import Doorbell

WITHOUT_EVENTFD = """
import os
for name in ("eventfd", "eventfd_read", "eventfd_write", "EFD_NONBLOCK", "EFD_CLOEXEC"):
    delattr(os, name)
"""


@pytest.fixture(params=["eventfd", "pipe"])
def bell(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Doorbell]:
    if request.param == "pipe":
        monkeypatch.delattr(os, "eventfd")
    bell = Doorbell()
    yield bell
    bell.close()


def is_rung(bell: Doorbell) -> bool:
    return bool(select.select([bell.fd], [], [], 0)[0])


def test_it_is_readable_from_a_ring_to_the_answer(bell: Doorbell) -> None:
    assert not is_rung(bell)
    for _ in range(3):
        bell.ring()
        bell.ring()
        assert is_rung(bell)
        bell.answer()
        assert not is_rung(bell)
        bell.answer()


def test_it_frees_its_descriptors_and_may_be_rung_afterwards(bell: Doorbell) -> None:
    before = set(os.listdir("/dev/fd"))
    bell.close()
    assert set(os.listdir("/dev/fd")) < before
    bell.ring()
    bell.close()


def test_its_descriptors_are_not_inherited(bell: Doorbell) -> None:
    assert not os.get_inheritable(bell.fd)


def test_a_client_and_a_node_work_without_eventfd() -> None:
    script = (
        WITHOUT_EVENTFD
        + "from fencelock.testing import local\n"
        + "with local() as cluster, cluster.connect().lock('a') as hold: print(hold.held)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert ended.stdout == "True\n", ended.stderr
