from __future__ import annotations

import pytest

from fencelock.actors.error import UnsupportedError
from fencelock.cluster.guarantee import PROMISES, Guarantee, demand


@pytest.mark.parametrize("protocol", PROMISES)
def test_what_is_promised_may_be_demanded(protocol: str) -> None:
    for guarantee in PROMISES[protocol].guarantees:
        demand(protocol, guarantee)


@pytest.mark.parametrize("protocol", PROMISES)
def test_what_is_not_promised_is_refused(protocol: str) -> None:
    for guarantee in set(Guarantee) - PROMISES[protocol].guarantees:
        with pytest.raises(UnsupportedError, match=f"{protocol} does not promise"):
            demand(protocol, guarantee)


def test_the_refusal_names_the_protocol_that_has_it() -> None:
    with pytest.raises(UnsupportedError) as caught:
        demand("central", Guarantee.FIFO)
    assert str(caught.value) == (
        "central does not promise fifo (first come, first served); lamport and paxos have it"
    )


def test_the_refusal_names_the_only_protocol_that_has_it() -> None:
    with pytest.raises(UnsupportedError) as caught:
        demand("lamport", Guarantee.REENTRANT)
    assert str(caught.value).endswith("; paxos has it")


def test_the_refusal_says_when_no_protocol_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(PROMISES, "paxos")
    with pytest.raises(UnsupportedError) as caught:
        demand("lamport", Guarantee.REENTRANT)
    assert str(caught.value).endswith("no protocol of this release has it")


def test_the_default_promises_all_but_what_bakery_alone_has_and_says_what_stops_it() -> None:
    only = {Guarantee.CLUSTER_EVENTS}
    assert PROMISES["paxos"].guarantees == set(Guarantee) - only
    assert "majority" in PROMISES["paxos"].does_not_survive


def test_an_unknown_protocol_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="protocol is 'raft', and must be one of bakery, central"):
        demand("raft", Guarantee.EXCLUSIVE)


def test_every_protocol_excludes_and_fences() -> None:
    for promise in PROMISES.values():
        assert {Guarantee.EXCLUSIVE, Guarantee.FENCED} <= promise.guarantees


def test_only_what_is_built_is_listed() -> None:
    assert list(PROMISES) == ["bakery", "central", "lamport", "paxos"]
