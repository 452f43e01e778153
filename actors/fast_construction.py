"""Messages, and copies of them with some fields changed, in a fraction of the usual time.

What is made is known when a class is declared. So making it is written out as somebody would by
hand for each class. The text is made of field names and never of anything that arrives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar, cast

from fencelock.actors.message import Message

C = TypeVar("C")
M = TypeVar("M", bound=Message)


def copier(cls: type[M], *changed: str) -> Callable[..., M]:
    """Return what is given a ``cls`` and values for the fields ``changed``, and returns a copy.

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
    exec("\n".join(lines), scope)  # As dataclasses are made; see above.
    copy: Callable[..., M] = scope["copy"]
    return copy


def maker(cls: type[C]) -> type[C]:
    """Return what makes instances of a dataclass with slots in a quarter of the class's time.

    It is a function with the class's parameters, by keyword only, and to be called and nothing
    else; type checkers take it for the class. To call a class that has an ``__init__`` of
    Python's, the interpreter packs its keywords into a dict and unpacks them again: for what is
    made for every request that is the dearest part of it.
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
    exec("\n".join(lines), names)  # As dataclasses are made: of field names, nothing else.
    return cast("type[C]", names["make"])
