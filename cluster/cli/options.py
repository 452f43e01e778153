"""Options of commands, declared without Typer, and plain command lines, read without it.

Typer and pydantic, with which it converts arguments since 0.29, take longer to import than
`fencelock lock` has for its start. So what that command declares is known here. `values_of` reads a
line that is plainly right. Any other, such as one with ``--help`` or with a mistake, is left to
Typer, which has the words for it; `declared_to_typer` hands it the options.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Sequence
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args


class Option(NamedTuple):
    """An option in the annotation of a parameter, as `typer.Option` is."""

    names: tuple[str, ...]
    more: dict[str, Any]


class Argument(NamedTuple):
    """An argument in the annotation of a parameter, as `typer.Argument` is."""

    more: dict[str, Any]


class WrongUsageError(Exception):
    """Arguments do not go together. Typer prints it with the usage of the command."""

    def __init__(self, text: str, option: str | None = None) -> None:
        super().__init__(text)
        self.option = option


class NotPlainError(Exception):
    """The line has something that Typer must judge."""


def option(*names: str, **more: Any) -> Option:
    return Option(names, more)


def argument(**more: Any) -> Argument:
    return Argument(more)


def declared_to_typer(command: Callable[..., None]) -> Callable[..., None]:
    """Return ``command`` as Typer reads and calls it."""
    import typer  # noqa: PLC0415 (see above)

    if not hasattr(command, "__signature__"):  # It is not one of `asks_cluster`.
        return command
    parameters: list[inspect.Parameter] = []
    for one in inspect.signature(command).parameters.values():
        read: Any = one.annotation
        match get_args(read):
            case [kind, Option(names, more)]:
                read = Annotated[kind, typer.Option(*names, **more)]
            case [kind, Argument(more)]:
                read = Annotated[kind, typer.Argument(**more)]
            case _:
                pass
        parameters.append(one.replace(annotation=read))

    @functools.wraps(command)
    def called(**values: Any) -> None:
        try:
            command(**values)
        except WrongUsageError as error:
            raise typer.BadParameter(str(error), param_hint=error.option) from None

    called.__annotations__ = {one.name: one.annotation for one in parameters}
    vars(called)["__signature__"] = inspect.Signature(parameters)
    return called


FORMS: dict[type, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    str: (re.compile(r".*", re.DOTALL), str),
    int: (re.compile(r"\d{1,9}", re.ASCII), int),
    float: (re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII), float),
}
"""The types of values, each with the texts that need no judgement."""


def values_of(command: Callable[..., None], line: Sequence[str]) -> dict[str, Any]:
    """Return the arguments with which a plain ``line`` calls ``command``; refuse any other."""
    options: dict[str, tuple[str, type, dict[str, Any]]] = {}
    places: list[tuple[str, Any]] = []
    values: dict[str, Any] = {}
    for name, parameter in inspect.signature(command).parameters.items():
        declared, info = get_args(parameter.annotation)
        if isinstance(info, Argument):
            places.append((name, declared))
            continue
        (kind,) = {one for one in get_args(declared) or (declared,) if one is not NoneType}
        text = os.environ.get(info.more.get("envvar", ""))
        values[name] = _value(info.more, kind, text) if text else parameter.default
        options |= dict.fromkeys(info.names, (name, kind, info.more))
    words, rest = iter(line), list[str]()
    for word in words:
        if word == "--":
            rest += words
        elif not word.startswith("-"):
            rest.append(word)
        elif word in options:
            name, kind, more = options[word]
            values[name] = kind is bool or _value(more, kind, _next(words))
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


def _value(more: dict[str, Any], kind: type, text: str) -> Any:
    """Return what the ``text`` of an option means."""
    form, convert = FORMS[kind]
    if form.fullmatch(text) is None:
        raise NotPlainError
    value = convert(text)
    if kind is not str and not more.get("min", value) <= value <= more.get("max", value):
        raise NotPlainError
    return value
