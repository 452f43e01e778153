"""Options of commands, declared without Typer, and plain command lines, read without it.

Typer and pydantic, with which it converts arguments since 0.29, take longer to import than
`fencelock lock` has for its start. So what that command declares is known here. `run_plain` reads a
line that is plainly right. Any other, such as one with ``--help`` or with a mistake, is left to
Typer, which has the words for it; `declared_to_typer` hands it the options.

A parameter of a command may be a group of options, which several commands have: a named tuple with
defaults, such as `fencelock.cluster.cli.target.TargetOptions`, in which there may be others.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterator, Sequence
from types import NoneType
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints


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

    parameters: list[inspect.Parameter] = []
    for one in _parameters_of(command):
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
            _call(command, values)
        except WrongUsageError as error:
            raise typer.BadParameter(str(error), param_hint=error.option) from None

    called.__annotations__ = {one.name: one.annotation for one in parameters}
    vars(called)["__signature__"] = inspect.Signature(parameters)
    return called


def _parameters_of(command: Callable[..., None]) -> Iterator[inspect.Parameter]:
    """Yield the parameters of ``command``, with those in a group in its place."""
    for own in inspect.signature(command, eval_str=True).parameters.values():
        yield from _singles(own)


def _singles(own: inspect.Parameter) -> Iterator[inspect.Parameter]:
    group: Any = own.annotation
    if not _is_group(group):
        yield own
        return
    for name, kind in get_type_hints(group, include_extras=True).items():
        default = group._field_defaults[name]
        yield from _singles(own.replace(name=name, annotation=kind, default=default))


def _is_group(kind: Any) -> bool:
    return hasattr(kind, "_field_defaults")


def _call(command: Callable[..., None], values: dict[str, Any]) -> None:
    for own in inspect.signature(command, eval_str=True).parameters.values():
        if _is_group(own.annotation):
            values[own.name] = _grouped(own.annotation, values)
    command(**values)


def _grouped(group: Any, values: dict[str, Any]) -> Any:
    kinds = get_type_hints(group, include_extras=True)
    return group(
        *(
            _grouped(kind, values) if _is_group(kind) else values.pop(name)
            for name, kind in kinds.items()
        )
    )


FORMS: dict[type, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    str: (re.compile(r".*", re.DOTALL), str),
    int: (re.compile(r"\d{1,9}", re.ASCII), int),
    float: (re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII), float),
}
"""The types of values, each with the texts that need no judgement."""


def run_plain(command: Callable[..., None], line: Sequence[str]) -> None:
    """Call ``command`` with the arguments in a plain ``line``; refuse any other."""
    options: dict[str, tuple[str, type, dict[str, Any]]] = {}
    places: list[tuple[str, Any]] = []
    values: dict[str, Any] = {}
    for parameter in _parameters_of(command):
        name, (declared, info) = parameter.name, get_args(parameter.annotation)
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
    _call(command, values)


def _next(words: Iterator[str]) -> str:
    word = next(words, "-")
    if word.startswith("-"):
        raise NotPlainError
    return word


def _value(more: dict[str, Any], kind: type, text: str) -> Any:
    form, convert = FORMS[kind]
    if form.fullmatch(text) is None:
        raise NotPlainError
    value = convert(text)
    if kind is not str and not more.get("min", value) <= value <= more.get("max", value):
        raise NotPlainError
    return value
