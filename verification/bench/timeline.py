"""The time line of one request over client and nodes, from the marks that each of them set. Pure.

All processes of a machine share one clock. So the way of a request can be followed back from
its answer: to the frame that brought it, to the turn of the node that sent the frame, to the
frame that this turn came from, and so on to the call. What lies between two points of that way
is a span, and the spans of a request add up to its latency, to the nanosecond.

It assumes one request in flight at a time: a turn is taken to come from the frame it received.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from fencelock.verification.bench.profile_marks import Mark

CLIENT = "client"
"""The place where the way begins and ends."""


class Span(NamedTuple):
    """A span of time on the way of a request.

    ``what`` is that of a `Mark`, or ``wire``, ``dispatch`` (a turn's time between its marks),
    ``call`` (the caller's thread, before it rings), ``wake`` (from the ring, or from the end of
    the turn that brought the answer, to the thread that waits for it).
    """

    place: str
    what: str
    ns: int
    early: bool = False
    """Whether it precedes the receipt of the frame: its node still had other work to do."""


class NodeMarks:
    """The marks of one process, to be looked up by time.

    Args:
        name: of the node, or `CLIENT`.
        marks: as it set them.
        names: the others' names of its links, where they differ.

    """

    def __init__(self, name: str, marks: Sequence[Mark], names: Mapping[str, str]) -> None:
        self.name = name
        ordered = sorted(marks, key=lambda mark: (mark.begin_ns, mark.end_ns))
        self._all = [mark for mark in ordered if mark.what != "ring"]
        self._begins = [mark.begin_ns for mark in self._all]
        self._polls = [mark for mark in self._all if mark.what == "poll"]
        self._rings = [mark for mark in ordered if mark.what == "ring"]
        self._receives: list[tuple[Mark, tuple[str, ...]]] = []
        self._sends: dict[str, list[Mark]] = {}
        for mark in self._all:
            links = tuple(names.get(link, link) for link in mark.detail.split())
            if mark.what == "receive" and links:
                self._receives.append((mark, links))
            elif mark.what == "send":
                self._sends.setdefault(links[0], []).append(mark)

    def received(self, by_ns: int) -> tuple[Mark, tuple[str, ...]] | None:
        """Return the last receipt of frames that ended by ``by_ns``, and their senders."""
        at = bisect_right(self._receives, by_ns, key=lambda one: one[0].end_ns)
        return self._receives[at - 1] if at else None

    def sent(self, to: str, by_ns: int) -> Mark | None:
        """Return the last frame sent to ``to`` that was begun by ``by_ns``."""
        sends = self._sends.get(to, [])
        at = bisect_right(sends, by_ns, key=lambda mark: mark.begin_ns)
        return sends[at - 1] if at else None

    def slept(self, by_ns: int) -> Mark:
        """Return the last sleep that was over by ``by_ns``; one of no length if there is none."""
        at = bisect_right(self._polls, by_ns, key=lambda mark: mark.end_ns)
        return self._polls[at - 1] if at else Mark("poll", 0, 0)

    def sleeps(self, from_ns: int) -> int | None:
        """Return the time of the first sleep at ``from_ns`` or later."""
        at = bisect_left(self._polls, from_ns, key=lambda mark: mark.begin_ns)
        return self._polls[at].begin_ns if at < len(self._polls) else None

    def rung(self, from_ns: int, by_ns: int) -> int | None:
        """Return the time of the first ring of a thread within that time."""
        at = bisect_left(self._rings, from_ns, key=lambda mark: mark.begin_ns)
        if at < len(self._rings) and self._rings[at].begin_ns <= by_ns:
            return self._rings[at].begin_ns
        return None

    def spans(self, begin_ns: int, end_ns: int, *, early: bool = False) -> Iterator[Span]:
        """Yield its spans in that time, without a gap."""
        at = max(0, bisect_right(self._begins, begin_ns) - 1)
        done = begin_ns
        for mark in self._all[at:]:
            if mark.begin_ns >= end_ns:
                break
            if mark.end_ns <= done:
                continue
            if mark.begin_ns > done:
                yield Span(self.name, "dispatch", mark.begin_ns - done, early)
                done = mark.begin_ns
            until = min(mark.end_ns, end_ns)
            yield Span(self.name, mark.what, until - done, early)
            done = until
        if done < end_ns:
            yield Span(self.name, "dispatch", end_ns - done, early)


def way_of(logs: Mapping[str, NodeMarks], call_ns: int, back_ns: int) -> list[Span] | None:
    """Return the spans of a request, oldest first; their sum is ``back_ns - call_ns``.

    Args:
        logs: by name; `CLIENT` among them.
        call_ns: the time of the caller's call.
        back_ns: the time of its return.

    Returns:
        None if no frame of a known process led to the answer.

    """
    here = logs[CLIENT]
    found = here.received(back_ns)
    if found is None or found[0].begin_ns < call_ns:
        return None
    answered = min(here.sleeps(found[0].end_ns) or back_ns, back_ns)
    parts = [[*here.spans(found[0].end_ns, answered), Span(CLIENT, "wake", back_ns - answered)]]
    while True:
        received, senders = found
        sent, sender = _last_sent(logs, here.name, senders, received.begin_ns)
        if sent is None or sender is None or sent.begin_ns < call_ns:
            return None
        slept = here.slept(received.begin_ns)
        came = max(slept.end_ns, min(sent.end_ns, received.begin_ns))
        left = min(sent.end_ns, came)  # The socket's own thread may be quicker than our call.
        asleep = min(max(left, slept.begin_ns), came)
        parts.append([
            Span(sender.name, "send", left - sent.begin_ns),
            *here.spans(left, asleep, early=True),
            Span(here.name, "wire", came - asleep),
            *here.spans(came, received.begin_ns),
            Span(here.name, "receive", received.end_ns - received.begin_ns),
        ])  # fmt: skip
        if sender.name == CLIENT:
            parts.append(_asked(sender, call_ns, sent.begin_ns))
            return [span for part in reversed(parts) for span in part if span.ns]
        cause = sender.received(sent.begin_ns)
        if cause is None or cause[0].begin_ns < call_ns:
            return None
        parts.append(list(sender.spans(cause[0].end_ns, sent.begin_ns)))
        here, found = sender, cause


def _last_sent(
    logs: Mapping[str, NodeMarks], here: str, senders: Sequence[str], by_ns: int
) -> tuple[Mark | None, NodeMarks | None]:
    """Return the last of the frames that were received together, and its sender."""
    last: Mark | None = None
    by: NodeMarks | None = None
    for name in senders:
        log = logs.get(name)
        sent = None if log is None else log.sent(here, by_ns)
        if sent is not None and (last is None or sent.begin_ns > last.begin_ns):
            last, by = sent, log
    return last, by


def _asked(client: NodeMarks, call_ns: int, sent_ns: int) -> list[Span]:
    """Return the spans from the call to the first frame."""
    woke = max(client.slept(sent_ns).end_ns, call_ns)
    rung = client.rung(call_ns, woke)
    rung = woke if rung is None else rung
    return [
        Span(CLIENT, "call", rung - call_ns),
        Span(CLIENT, "wake", woke - rung),
        *client.spans(woke, sent_ns),
    ]
