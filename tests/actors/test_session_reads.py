"""A client's session with many reads at once: an endpoint has a bounded number at a time."""

from __future__ import annotations

from fencelock.actors.quota import DEFAULT_QUOTAS
from fencelock.actors.session.requests import (
    BOUNDED_READS_SENT_MAX,
    READS_SENT_MAX,
    ReadWindow,
    windows,
)

MANY = 3 * READS_SENT_MAX


def test_all_reads_of_a_client_fit_into_the_quota_of_a_node() -> None:
    assert DEFAULT_QUOTAS.queries > READS_SENT_MAX + BOUNDED_READS_SENT_MAX


def test_callers_inside_a_node_have_no_limit() -> None:
    for window in windows(local=True):
        assert all(window.admit(number) for number in range(MANY))


def test_a_number_is_sent_or_held_back_until_it_is_dropped() -> None:
    window = ReadWindow(1)
    assert [window.admit(number) for number in (1, 2, 3, 1)] == [True, False, False, True]
    assert window.next() is None
    window.drop(2)
    window.drop(1)
    assert window.next() == 3
    assert window.admit(3)
    assert (window.sent, [*window.held_back]) == ({3}, [])
