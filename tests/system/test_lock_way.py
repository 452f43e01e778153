"""`actors/where-to-look.md` follows a lock through the code: tests compare it with a real walk."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from support.paths import ROOT, SUPPORT
from support.programs import run_to_end

WAY = ROOT / "actors" / "where-to-look.md"
TO_ADD = ROOT / "actors" / "to-add.md"
OFTEN = 0.9
"""Share of the pairs that enter a module of the usual way; timers may enter others now and then."""


def section(page: Path, title: str) -> str:
    """Return the text of ``page`` below the heading ``title``, up to the next heading."""
    _, found, rest = page.read_text(encoding="utf-8").partition(f"\n## {title}\n")
    assert found, f"{page} has no section {title!r}"
    return rest.partition("\n## ")[0]


def links(text: str) -> set[str]:
    """Return the files that ``text`` links to, from the root of the repository."""
    found = {link.partition("#")[0] for link in re.findall(r"\]\(([^)]+\.py[^)]*)\)", text)}
    return {str((WAY.parent / link).resolve().relative_to(ROOT)) for link in found}


def test_a_locks_way_lists_the_modules_that_an_acquire_enters() -> None:
    listed = links(section(WAY, "A lock's way"))
    walk = run_to_end(
        [sys.executable, str(SUPPORT / "walked_modules.py")],
        env={"PYTHONPATH": str(SUPPORT.parent)},
        check=True,
        timeout=300,
    )
    entered: dict[str, float] = json.loads(walk.stdout)

    usual = {module for module, share in entered.items() if share >= OFTEN}
    assert usual - listed == set(), "enter the page's list, or leave the way of a lock"
    assert listed - set(entered) == set(), "are listed and not entered"


def test_every_function_that_the_way_names_is_in_its_module() -> None:
    text = section(WAY, "A lock's way")
    named = re.findall(r"\[`([\w.]+)`\]\(([^)]+\.py)\)", text)
    assert len(named) > 20
    missing = [
        (name, link)
        for name, link in named
        if not re.search(
            rf"(def|class) {re.escape(name.rpartition('.')[2])}\b",
            (WAY.parent / link).read_text(encoding="utf-8"),
        )
    ]
    assert missing == []


def test_the_files_to_touch_for_a_command_are_there_and_few() -> None:
    product = {
        file
        for file in links(section(TO_ADD, "To add a command"))
        if file.partition("/")[0] in ("actors", "transport", "cluster")
    }
    assert all((ROOT / file).exists() for file in product)
    assert 4 <= len(product) <= 12
