"""Options, each declared once: a field of a dataclass says what it means and how it is spelled.

Command lines, signatures, docstrings, checks and recipes come from the fields.
"""

from __future__ import annotations

import inspect
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import MISSING, Field, field, fields, replace
from functools import wraps
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from mdio.core.errors import OptionError
from mdio.core.words import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

GOES_WITH = {"append": False, "follow": True}
"""Whether an option goes with these unless its field says otherwise."""


def option(text: str, spelled: str = "", default: Any = None, **more: Any) -> Any:
    """Return a field that declares an option.

    `text`: its help. `spelled`: its names on the command line and, last, that of its value (``-s
    --top FILE``); one without a value is a flag, and one without a name is of Python alone. `more`:
    ``kind``, how its text is parsed where its type does not say (`mdio.cli.common.KINDS`);
    ``choices``; ``values``, flags that stand for a value each; ``alone``, a name of options of
    which but one is given; ``named``, that signatures show it; ``by_name``, that functions take it
    without its part, too; ``keys``, of a mapping; ``own``, that not every layout has it;
    ``append``, ``follow``: whether it goes with these (`GOES_WITH`).
    """
    metadata = {"text": text, "spelled": spelled, **more}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def declared_fields(*parts: Any) -> dict[str, Field[Any]]:
    """Return the fields of dataclasses, or of their objects, by name."""
    return {one.name: one for part in parts for one in fields(part)}


def spell_option(one: Field[Any], value: Any = None) -> str:
    """Return how the command line spells an option, which has some `value`."""
    flags = [word for word in one.metadata["spelled"].split() if word.startswith("--")]
    values = one.metadata.get("values", {})
    named = values.get(value) if isinstance(value, str) else None
    return str(named or (flags or [one.name])[0])


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def non_defaults(options: Any) -> Iterator[tuple[Field[Any], Any]]:
    """Yield each option that differs from its default, and its value."""
    for one in fields(options):
        value, default = getattr(options, one.name), _default(one)
        same = type(value) is type(default) and value == default
        if not same and not (isinstance(value, Sized) and not len(value)):
            yield one, value


def allowed_with(one: Field[Any], way: str) -> bool:
    """Return whether an option goes with one of `GOES_WITH`."""
    return bool(one.metadata.get(way, GOES_WITH[way]))


def check_numbers(options: Any) -> None:
    """Raise OptionError if the value of an option that is a number is none."""
    for one in fields(options):
        kind, value = str(one.type).removesuffix(" | None"), getattr(options, one.name)
        method = {"int": "__index__", "float": "__float__"}.get(kind)
        if method is not None and value is not None and not hasattr(value, method):
            whole = "whole number" if kind == "int" else "number"
            raise OptionError(f"{one.name} is {value!r}; give a {whole}")


def takes_options(
    *parts: type, apart: Mapping[str, type] = MappingProxyType({})
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Document the ``**options`` of a function, which are fields of `parts`, and check their names.

    Its signature has those that are used most by name, and its docstring all, where it has
    ``<options>``. A name that is none of them is an OptionError. `apart`: parts that the function
    takes as one object, by the name of its argument. Their fields that are not to be given by name
    are put into it, with a DeprecationWarning.
    """
    every = declared_fields(*parts)

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        own = inspect.signature(function)
        parameters = list(own.parameters.values())
        names = {one.name for one in parameters if one.kind is not one.VAR_KEYWORD}
        names |= every.keys() | apart.keys()

        @wraps(function)
        def checked(*args: P.args, **words: P.kwargs) -> R:
            for name in words.keys() - names:
                meant = did_you_mean(name, names) or f"; it has {', '.join(sorted(names))}"
                for one in every.values():
                    if name in one.metadata.get("keys", ()):
                        meant = f"; it describes the source: {one.name}={{{name!r}: ...}}"
                called = function.__qualname__.removesuffix(".__init__")
                raise OptionError(f"{called} has no option {name!r}{meant}")
            for name, part in apart.items():
                _put_into(part, name, words)
            return function(*args, **words)

        shown = [
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=_default(one))
            for one in every.values()
            if one.metadata.get("named") and one.name not in own.parameters
        ]
        objects = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in apart
        ]
        signature = own.replace(parameters=[*parameters[:-1], *shown, *objects, parameters[-1]])
        vars(checked).update(__signature__=signature, option_names=names)
        checked.__doc__ = (function.__doc__ or "").replace("<options>", _listed(parts, apart))
        return checked

    return decorated


def _is_given_by_name(one: Field[Any]) -> bool:
    return bool(one.metadata.get("named") or one.metadata.get("by_name"))


def _put_into(part: Any, name: str, words: dict[str, Any]) -> None:
    """Put options of `part` that are not given by name into the object `name` of `words`."""
    options: Any = words.get(name)
    if not (options is None or isinstance(options, part)):
        raise OptionError(f"{name} is {options!r}; give mdio.{part.__name__}(...)")
    own_options = {one.name: one for one in fields(part) if one.name in words}
    in_object = {one.name for one, _ in non_defaults(options)} if options is not None else set()
    for same in in_object & own_options.keys():
        raise OptionError(f"{same} is given twice: by itself and in {name}; give it once")
    by_name_only = [key for key, one in own_options.items() if not _is_given_by_name(one)]
    if by_name_only:
        text = ", ".join(f"{key}={words[key]!r}" for key in by_name_only)
        warnings.warn(
            f"give {name}=mdio.{part.__name__}({text}); by itself, the next version of mdio does "
            f"not take {' and '.join(by_name_only)}",
            DeprecationWarning,
            stacklevel=3,
        )
        values = {key: words.pop(key) for key in by_name_only}
        words[name] = part(**values) if options is None else replace(options, **values)


def _listed(parts: tuple[type, ...], apart: Mapping[str, type]) -> str:
    """Return the list of options for a docstring."""
    lines = []
    objects = {part: name for name, part in apart.items()}
    for part in parts:
        heading = (part.__doc__ or "").partition("\n")[0]
        if (name := objects.get(part)) is not None:
            alone = [one.name for one in fields(part) if _is_given_by_name(one)]
            heading += f" As ``{name}=mdio.{part.__name__}(...)``; by themselves, too: "
            heading += f"{', '.join(alone)}."
        lines += [*textwrap.wrap(heading, 88), ""]
        for one in fields(part):
            no = "False: " if one.default is True else ""
            text = f"- ``{one.name}``: {no}{one.metadata['text']}"
            lines += textwrap.wrap(text, 88, subsequent_indent="  ", break_on_hyphens=False)
        lines.append("")
    return "\n        ".join(lines).rstrip()


def build_parts(parts: tuple[type, ...], options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return an object of each dataclass, made from its options among `options`."""
    names = (declared_fields(part).keys() & options.keys() for part in parts)
    pairs = zip(parts, names, strict=True)
    built = tuple(part(**{name: options[name] for name in own}) for part, own in pairs)
    for one in built:
        check_numbers(one)
    return built
