"""The tables of messages and structures in ``transport/README.md`` are what the code declares.

``PYTHONPATH=tests python tests/transport/test_wire_table.py --rewrite`` writes their fields anew.
People write the last column, which says what a message means.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import inspect
from support.paths import ROOT

import fencelock.actors.api as api_package
from fencelock.actors.message import REGISTRY, Int64, Message
from fencelock.transport.frame import Rejected

PAGE = ROOT / "transport" / "README.md"
PLAIN: dict[type[inspect.Type], str] = {
    inspect.IntType: "int",
    inspect.EnumType: "int",
    inspect.StrType: "text",
    inspect.BytesType: "bytes",
    inspect.BoolType: "bool",
}


def messages() -> dict[int, type[Message]]:
    """Return the messages that clients send or receive, by tag: those of ``actors/api``."""
    for module in pkgutil.iter_modules(api_package.__path__):
        importlib.import_module(f"{api_package.__name__}.{module.name}")
    api = f"{api_package.__name__}."
    ours = {tag: cls for tag, cls in REGISTRY.items() if cls.__module__.startswith(api)}
    return {**ours, Rejected.TAG: Rejected}


def spelled(kind: inspect.Type) -> str:
    """Return a declared type as the page writes it."""
    match kind:
        case inspect.VarTupleType(item_type=item):
            return f"[{spelled(item)}]"
        case inspect.UnionType(types=arms):
            (some,) = (arm for arm in arms if not isinstance(arm, inspect.NoneType))
            return f"{spelled(some)}?"
        case inspect.NamedTupleType(cls=cls) | inspect.StructType(cls=cls):
            return cls.__name__
        case _:
            return PLAIN[type(kind)]


def fields_of(cls: Any) -> list[tuple[str, inspect.Type]]:
    """Return the names and types of the fields of a message or a structure."""
    declaration: Any = inspect.type_info(cls)
    return [(field.name, field.type) for field in declaration.fields]


def fields_in_words(cls: Any) -> str:
    return ", ".join(f"{name} {spelled(kind)}" for name, kind in fields_of(cls))


def structures_in(kind: inspect.Type) -> Iterator[Any]:
    """Yield the structures in a declared type, and those in them."""
    match kind:
        case inspect.VarTupleType(item_type=item):
            yield from structures_in(item)
        case inspect.UnionType(types=arms):
            for arm in arms:
                yield from structures_in(arm)
        case inspect.NamedTupleType(cls=cls):
            yield cls
            for _, inner in fields_of(cls):
                yield from structures_in(inner)
        case _:
            pass


def rewritten(page: str, declared: dict[int, type[Message]]) -> str:
    """Return ``page`` with the tables that ``declared`` makes."""
    meanings: dict[str, str] = dict(
        re.findall(r"^\| 0x[0-9A-F]+ \| (\w+) \| .*? \| (.*) \|$", page, re.MULTILINE)
    )
    rows = [
        f"| 0x{tag:02X} | {cls.__name__} | {fields_in_words(cls)} "
        f"| {meanings.get(cls.__name__, '?')} |"
        for tag, cls in sorted(declared.items())
    ]
    kinds = [kind for cls in declared.values() for _, kind in fields_of(cls)]
    structures = {one.__name__: one for kind in kinds for one in structures_in(kind)}
    parts = [f"| {name} | {fields_in_words(one)} |" for name, one in sorted(structures.items())]
    page = re.sub(r"(\| tag \| message \|.*\n\|[ -|]*\n)(\| .*\n)*", _table(rows), page)
    return re.sub(r"(\| structure \|.*\n\|[ -|]*\n)(\| .*\n)*", _table(parts), page)


def _table(rows: list[str]) -> Callable[[re.Match[str]], str]:
    def filled(found: re.Match[str]) -> str:
        return found[1] + "".join(f"{row}\n" for row in rows)

    return filled


def test_the_page_has_every_message_of_clients_with_its_fields() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == rewritten(page, messages())
    assert "| ? |" not in page


class Added(Message, tag=0xFF30):
    number: Int64 | None
    names: tuple[str, ...] = ()


def test_a_message_that_the_page_lacks_is_found() -> None:
    page = PAGE.read_text(encoding="utf-8")
    grown = rewritten(page, {**messages(), Added.TAG: Added})
    assert "| 0xFF30 | Added | number int?, names [text] | ? |\n" in grown
    assert grown != page


if __name__ == "__main__":
    if sys.argv[1:] != ["--rewrite"]:
        sys.exit(
            f"usage: PYTHONPATH=tests python {sys.argv[0]} --rewrite   (write {PAGE.name} anew)"
        )
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8"), messages()), encoding="utf-8")
