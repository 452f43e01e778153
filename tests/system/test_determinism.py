"""Nothing in ``actors/`` may decide by what differs from one interpreter to the next.

Replicas that run together must come to the same table from the same log, whatever version of
Python, of Unicode and of a library each of them runs, and whatever its hash seed and its locale.
The check walks the syntax trees; it knows names and literals and no types. It finds calls by name,
so a method of our own may not be called like a forbidden one of ``str``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from support.paths import ROOT

UNICODE_METHODS = {
    "isprintable", "isalnum", "isalpha", "isdecimal", "isdigit", "isidentifier", "isnumeric",
    "isspace", "islower", "isupper", "istitle", "casefold", "lower", "upper", "title", "capitalize",
    "swapcase", "splitlines", "zfill", "expandtabs",
}  # fmt: skip
"""Methods of ``str`` that look characters up in Python's Unicode tables."""

BLANK_METHODS = {"strip", "lstrip", "rstrip", "split", "rsplit"}
"""Methods of ``str`` that look up which characters are white space, if they are given none."""

CALLS = {"hash", "id", "float", "input", "eval", "exec", "open", "print", "vars", "dir"}
"""Functions whose result depends on the process, or is a float, or that reach outside of it."""

MODULES = {
    "unicodedata", "locale", "re", "math", "cmath", "statistics", "decimal", "fractions", "pickle",
    "marshal", "struct", "platform", "sys", "gc", "inspect", "cbor2", "string", "textwrap",
}  # fmt: skip
"""Modules whose results depend on the interpreter, on the machine or on their own version."""

TABLE = "actors/table/table.py"
"""The modules that this module imports, directly or not, make up the replicated table."""

UNORDERED = {"sorted", "set", "frozenset", "any", "all"}
"""Functions that give the same result for any order of iteration."""

EXCEPTIONS = {
    ("actors/api/lock_message.py", "vars"): "the fields of a class, when a module is imported",
    ("actors/api/name.py", "isprintable"): "of ASCII texts, which no Python judges otherwise",
    ("actors/api/name.py", "isalpha"): "of an ASCII text, as above",
    ("actors/api/name.py", "islower"): "of an ASCII text, as above",
    ("actors/bakery/leader.py", "lower"): "the name of a counter, from the name of a class",
    ("actors/bakery/epochs.py", "lower"): "the name of a counter, from the name of a class",
    ("actors/bakery/in_flight.py", "lower"): "the name of a counter, from an enum's member",
    ("actors/central/broker.py", "lower"): "the name of a counter, from the name of a class",
    ("actors/lamport/process.py", "lower"): "the name of a counter, from the name of a class",
    ("actors/paxos/backend.py", "lower"): "the name of a counter, from an enum's member",
    ("actors/session/endpoints.py", "/"): "seconds in a text for people",
    ("actors/session/asker.py", "/"): "seconds in a text for people",
    ("actors/session/holds.py", "/"): "seconds in a text for people",
    ("actors/session/refusals.py", "/"): "seconds in a text for people",
    ("actors/error.py", "!r"): "a text for the user whose write was refused; no role raises it",
    ("actors/fault.py", "!r"): "a line in the log of one node",
    ("actors/table/poison.py", "repr"): "the reason why one node stops, for its log",
    ("actors/table/account.py", "/"): "a metric, by which no rule decides",
    ("actors/histogram.py", "float"): "bounds of a metric, by which no role decides",
    ("actors/membership_target.py", "/"): "seconds in a text for people",
    ("actors/paxos/slow_disk.py", "/"): "milliseconds in a text for people",
    ("actors/api/membership_message.py", "re"): "patterns of ASCII characters, checked by a proxy",
    ("actors/api/name.py", "re"): "a pattern of ASCII characters, for texts that people see",
    ("actors/session/requests.py", "/"): "the jitter of a client's own timers",
    ("actors/session/requests.py", "float"): "the jitter of a client's own timers",
    ("actors/role.py", "vars"): "the state of a role for a log line, and its declared events",
}
"""Uses that decide nothing that is replicated, each with the reason."""

READS_TEXT = "actors/redis/"
"""The Redis door reads texts of its own clients: one node alone decides what they mean, and the log
has only the result. Of the rules here it must keep the one about the order of sets."""


def name_of(call: ast.Call) -> str:
    match call.func:
        case ast.Name(name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""


def is_set(node: ast.expr) -> bool:
    match node:
        case ast.Set() | ast.SetComp() | ast.Call(func=ast.Name("set" | "frozenset")):
            return True
        case ast.BinOp(left, ast.BitAnd() | ast.BitOr() | ast.Sub() | ast.BitXor(), right):
            return is_set(left) or is_set(right)
        case _:
            return False


def iterated(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what ``node`` iterates over into something that keeps the order."""
    match node:
        case ast.For(iter=source) | ast.comprehension(iter=source) | ast.Starred(source):
            yield source
        case ast.Call(
            func=ast.Name("list" | "tuple" | "iter" | "next" | "enumerate"), args=[one, *_]
        ):
            yield one
        case _:
            pass


def forbidden(tree: ast.AST, *, table: bool = False) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each use that is not allowed; ``table`` is stricter."""
    ordered = {
        id(argument.generators[0].iter)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and name_of(node) in UNORDERED
        for argument in node.args
        if isinstance(argument, ast.GeneratorExp)
    }
    for node in ast.walk(tree):
        found = what_is_wrong(node) or (what_is_wrong_in_the_table(node) if table else "")
        if found:
            yield getattr(node, "lineno", 0), found
        for source in iterated(node):
            if is_set(source) and id(source) not in ordered:
                yield source.lineno, "order of a set"


def what_is_wrong(node: ast.AST) -> str:
    match node:
        case ast.Attribute(attr=name) if name in UNICODE_METHODS:
            return name
        case ast.Call(func=ast.Attribute(attr=name), args=[]) if name in BLANK_METHODS:
            return f"{name} without arguments"
        case ast.Call(func=ast.Name(name)) if name in CALLS:
            return name
        case ast.Import(names):
            tops = [alias.name.partition(".")[0] for alias in names]
            return next((top for top in tops if top in MODULES), "")
        case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in MODULES:
            return module
        case ast.Constant(float() | complex()):
            return "float"
        case ast.BinOp(op=ast.Div()) | ast.AugAssign(op=ast.Div()):
            return "/"
        case _:
            return ""


def what_is_wrong_in_the_table(node: ast.AST) -> str:
    match node:
        case ast.FormattedValue(conversion=conversion) if conversion == ord("r"):
            return "!r"
        case ast.Call(func=ast.Name("repr")):
            return "repr"
        case _:
            return ""


def modules_of_the_table() -> frozenset[str]:
    """Return the modules that `TABLE` imports at run time, directly or not, and itself."""
    found: set[str] = set()
    left = [TABLE]
    while left:
        name = left.pop()
        if name in found or not (ROOT / name).exists():
            continue
        found.add(name)
        for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fencelock."):
                path = (node.module or "").removeprefix("fencelock.").replace(".", "/")
                left += [f"{path}.py", *(f"{path}/{alias.name}.py" for alias in node.names)]
    return frozenset(found)


def test_no_role_decides_by_what_differs_from_one_python_to_the_next() -> None:
    table = modules_of_the_table()
    assert {"actors/table/lock_rules.py", "actors/api/name.py"} <= table
    wrong: list[str] = []
    used: set[tuple[str, str]] = set()
    for file in sorted((ROOT / "actors").rglob("*.py")):
        path = str(file.relative_to(ROOT))
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for line, what in forbidden(tree, table=path in table):
            if path.startswith(READS_TEXT) and what != "order of a set":
                continue
            if (path, what) in EXCEPTIONS:
                used.add((path, what))
            else:
                wrong.append(f"{path}:{line}: {what}")
    assert wrong == []
    assert used == set(EXCEPTIONS), "an exception that nothing needs any more"


PLANTED = {
    "lock.isprintable()": "isprintable",
    "any(map(str.isalnum, lock))": "isalnum",
    "name.casefold() == other": "casefold",
    "name.upper()": "upper",
    "name.strip()": "strip without arguments",
    "name.split()": "split without arguments",
    "import unicodedata": "unicodedata",
    "from unicodedata import category": "unicodedata",
    "import re": "re",
    "import locale": "locale",
    "hash(lock) % 3": "hash",
    "id(session)": "id",
    "float(ttl)": "float",
    "ttl * 1.5": "float",
    "ttl / 2": "/",
    "[send(one) for one in {1, 2}]": "order of a set",
    "for one in set(waits): pass": "order of a set",
    "list(set(waits) - known)": "order of a set",
    "first(*{one for one in waits})": "order of a set",
    "f'held by {owner!r}'": "!r",
    "repr(owner)": "repr",
}


@pytest.mark.parametrize("code", PLANTED)
def test_a_planted_use_is_found(code: str) -> None:
    assert PLANTED[code] in [what for _, what in forbidden(ast.parse(code), table=True)]


@pytest.mark.parametrize(
    "code",
    [
        "text.split('.')",
        "text.strip('x')",
        "ttl // 2",
        "sorted({1, 2})",
        "sorted(one for one in set(waits))",
        "len(set(names))",
        "f'{owner!a}'",
        "'title'",
    ],
)
def test_a_call_that_is_the_same_everywhere_is_not_found(code: str) -> None:
    assert list(forbidden(ast.parse(code), table=True)) == []
