"""Plain command lines, read from the declaration of a command without the parser of Typer.

Since 0.29 Typer converts arguments with pydantic, whose import takes half of the time that a
command for cron has for its start. A line that is plainly right is read here. Any other, such as
one with ``--help`` or with a mistake, is left to Typer, which has the words for it.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Sequence
from types import NoneType
from typing import Any, get_args

from typer.models import ArgumentInfo, OptionInfo

FORMS: dict[type, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    str: (re.compile(r".*", re.DOTALL), str),
    int: (re.compile(r"\d{1,9}", re.ASCII), int),
    float: (re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII), float),
}
"""The types of values, each with the texts that need no judgement."""


class NotPlainError(Exception):
    """The line has something that Typer must judge."""


def values_of(command: Callable[..., None], line: Sequence[str]) -> dict[str, Any]:
    """Return the arguments with which ``line`` calls ``command``.

    Raises:
        NotPlainError: the line is not plain, or the declaration has what is not known here.

    """
    options: dict[str, tuple[str, type, OptionInfo]] = {}
    places: list[tuple[str, Any]] = []
    values: dict[str, Any] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        declared, info = get_args(parameter.annotation)
        if isinstance(info, ArgumentInfo):
            places.append((name, declared))
            continue
        (kind,) = {one for one in get_args(declared) or (declared,) if one is not NoneType}
        values[name] = _from_environment(info, kind, parameter.default)
        options |= dict.fromkeys((info.default, *info.param_decls), (name, kind, info))
    words, rest = iter(line), list[str]()
    for word in words:
        if word == "--":
            rest += words
        elif not word.startswith("-"):
            rest.append(word)
        elif word in options:
            name, kind, info = options[word]
            values[name] = kind is bool or _value(info, kind, _next(words))
        else:
            raise NotPlainError
    for name, declared in places:
        if not rest:
            raise NotPlainError
        values[name], rest = (rest[0], rest[1:]) if declared is str else (rest, [])
    if rest:
        raise NotPlainError
    return values


def _next(words: Iterator[str]) -> str:
    word = next(words, "-")
    if word.startswith("-"):
        raise NotPlainError
    return word


def _from_environment(info: OptionInfo, kind: type, default: Any) -> Any:
    text = os.environ.get(str(info.envvar)) if info.envvar else None
    return _value(info, kind, text) if text else default


def _value(info: OptionInfo, kind: type, text: str) -> Any:
    """Return what the ``text`` of an option means."""
    form, convert = FORMS[kind]
    if form.fullmatch(text) is None:
        raise NotPlainError
    value = convert(text)
    if (info.min is not None and value < info.min) or (info.max is not None and value > info.max):
        raise NotPlainError
    return value
