"""The programs that draw mutants of the product and of journals."""

from __future__ import annotations

import sys
from pathlib import Path

import mutants
import pytest
from mutants import Selection, made_hang, mutants_of, run
from support.paths import PROGRAMS, ROOT
from support.programs import run_to_end

MODULE = """\
LIMIT = 3


def take(queue, item, n: int = 1):
    assert n >= 1
    if len(queue) + n > LIMIT and item:
        raise ValueError(item)
    queue.names[item] = n
    return store(queue, "ä", True)
"""


def changes(source: str) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    for mutant in mutants_of("m.py", source):
        pairs = zip(source.splitlines(), mutant.apply(source).splitlines(), strict=False)
        before, after = next((one, other) for one, other in pairs if one != other)
        found.append((mutant.operator, before.strip(), after.strip()))
    return found


def test_every_operator_changes_one_place_and_neither_assertions_nor_annotations() -> None:
    condition = "if len(queue) + n > LIMIT and item:"
    call = 'return store(queue, "ä", True)'
    assert sorted(changes(MODULE)) == sorted(
        [
            ("change_constant", "LIMIT = 3", "LIMIT = 4"),
            (
                "change_constant",
                "def take(queue, item, n: int = 1):",
                "def take(queue, item, n: int = 2):",
            ),
            ("change_condition", condition, "if (not (len(queue) + n > LIMIT and item)):"),
            ("change_condition", condition, "if False:"),
            ("change_condition", condition, "if True:"),
            ("swap_and_or", condition, "if (len(queue) + n > LIMIT or item):"),
            ("flip_comparison", condition, "if (len(queue) + n >= LIMIT) and item:"),
            ("change_sign", condition, "if (len(queue) - n) > LIMIT and item:"),
            ("drop_statement", "raise ValueError(item)", "pass"),
            ("drop_statement", "queue.names[item] = n", "pass"),
            ("swap_arguments", call, "return (store('ä', queue, True))"),
            ("swap_arguments", call, "return (store(queue, True, 'ä'))"),
            ("change_constant", call, 'return store(queue, "ä", False)'),
        ]
    )


def test_a_seed_draws_the_same_mutants_each_time() -> None:
    once, again = (mutants.draw(ROOT, 7, 5, ["actors/clock.py"]) for _ in range(2))
    assert once == again
    assert {mutant.file for mutant in once} == {"actors/clock.py"}


def test_a_line_is_named_to_draw_only_its_mutants() -> None:
    line = mutants.draw(ROOT, 7, 1, ["actors/clock.py"])[0].line
    drawn = mutants.draw(ROOT, 1, 99, [f"actors/clock.py:{line}"])
    assert {mutant.line for mutant in drawn} == {line}


@pytest.mark.parametrize(
    ("body", "verdict"), [("assert True", "survived"), ("assert False", "killed")]
)
def test_the_verdict_is_that_of_the_tests(tmp_path: Path, body: str, verdict: str) -> None:
    test = tmp_path / "test_subject.py"
    test.write_text(f"def test_subject():\n    {body}\n")
    assert run(tmp_path, [test], test_seconds=60)[0] == verdict


@pytest.mark.long
def test_a_test_that_is_as_slow_without_the_mutant_shows_nothing(tmp_path: Path) -> None:
    test = tmp_path / "test_subject.py"
    imports = "import pytest, threading\n"
    cases = "@pytest.mark.parametrize('text', ['a b', 'c d'])\ndef test_it(text):\n"
    wait = "    threading.Event().wait(None if text == 'c d' else 0)\n"
    test.write_text(f"{imports}{cases}{wait}")
    verdict, hung = run(tmp_path, [test], test_seconds=2)
    assert (verdict, hung) == ("hung", "test_subject.py::test_it[c d]")
    assert not made_hang(tmp_path, [test], hung, test_seconds=2)

    test.write_text(f"{imports}{cases}    pass\n")
    assert made_hang(tmp_path, [test], hung, test_seconds=5)


SUBJECT = """\
def grant(queue):
    return queue.head


def refuse(owner):
    raise OverloadedError(f"{owner} has too many keys")
"""


@pytest.mark.parametrize(
    ("line", "first"), [(2, ["test_grant", "test_real", "test_user"]), (6, ["test_transcripts"])]
)
def test_files_that_name_what_a_function_does_judge_it_first_however_they_reach_it(
    tmp_path: Path, line: int, first: list[str]
) -> None:
    files = {
        "src/fencelock/actors/subject.py": SUBJECT,
        "src/fencelock/actors/user.py": "from fencelock.actors import subject",
        "tests/actors/test_grant.py": "from fencelock.actors import subject\n# grant: queue, head",
        "tests/actors/test_other.py": "import fencelock",
        "tests/actors/test_user.py": "from fencelock.actors import user\n# grant: queue, head",
        "tests/system/test_real.py": "from fencelock.actors import subject\n# grant: queue, head",
        "tests/actors/test_transcripts.py": "from fencelock.actors import user",
        "tests/actors/transcripts/refusals.txt": "refuse an owner: OverloadedError, too many keys",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    chosen = Selection(tmp_path).tests_of("src/fencelock/actors/subject.py", line, 9)
    assert [test.stem for test in chosen][: len(first)] == first


def test_each_mutant_is_refused_or_recovers_without_damage() -> None:
    command = [sys.executable, str(PROGRAMS / "journal_mutants.py"), "--mutants", "60"]
    ended = run_to_end(command)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert {"refused", "repairable"} <= set(ended.stdout.split())
