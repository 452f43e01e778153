"""Fast construction of messages, and of copies with some fields changed.

The fields are known when a class is declared. So the code that sets them is generated as it
would be written by hand. It is made of field names and never of anything received.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar, cast

from fencelock.actors.message import Message

C = TypeVar("C")
M = TypeVar("M", bound=Message)


def copier(cls: type[M], *changed: str) -> Callable[..., M]:
    """Return a function that copies a ``cls`` with new values for the fields ``changed``.

    The copy is filled without its constructor, so a class may have no ``__post_init__``.
    """
    names = [field.name for field in fields(cast("Any", cls))]
    assert set(changed) <= set(names)
    assert not hasattr(cls, "__post_init__")
    lines = [
        f"def copy(message, {', '.join(changed)}):",
        "    made = new(cls)",
        "    made.encoded = None",
        *(f"    made.{name} = {name if name in changed else f'message.{name}'}" for name in names),
        "    return made",
    ]
    scope: dict[str, Any] = {"cls": cls, "new": object.__new__}
    exec("\n".join(lines), scope)  # As dataclasses do; see above.
    copy: Callable[..., M] = scope["copy"]
    return copy


def maker(cls: type[C]) -> type[C]:
    """Return a function that makes instances of a dataclass with slots, four times as fast.

    It has the class's parameters, by keyword only, and can only be called; type checkers take it
    for the class. Calling a class whose ``__init__`` is written in Python makes the interpreter
    pack the keywords into a dict and unpack them again, which is the largest part of the cost.
    """
    assert not hasattr(cls, "__post_init__")
    names: dict[str, Any] = {"new": object.__new__, "cls": cls}
    parameters: list[str] = []
    for field in fields(cast("Any", cls)):
        assert field.init
        assert field.default_factory is MISSING
        if field.default is MISSING:
            parameters.append(field.name)
        else:
            names[f"default_{field.name}"] = field.default
            parameters.append(f"{field.name}=default_{field.name}")
    lines = [
        f"def make(*, {', '.join(parameters)}):",
        "    made = new(cls)",
        *(["    made.encoded = None"] if issubclass(cls, Message) else []),
        *(f"    made.{field.name} = {field.name}" for field in fields(cast("Any", cls))),
        "    return made",
    ]
    exec("\n".join(lines), names)  # As dataclasses do: from field names, nothing else.
    return cast("type[C]", names["make"])
