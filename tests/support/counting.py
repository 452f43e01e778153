"""Counts of the work that a role does."""

from __future__ import annotations

from types import ModuleType

import pytest

from fencelock.actors.api.lock_message import Contender


def count_contenders(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> list[str]:
    """Return a list to which each contender that ``module`` builds adds its owner."""
    built: list[str] = []

    def build(node: str, session: str, owner: str, fence: int | None, since_ms: int) -> Contender:
        built.append(owner)
        return Contender(node, session, owner, fence, since_ms)

    monkeypatch.setattr(module, "Contender", build)
    return built
