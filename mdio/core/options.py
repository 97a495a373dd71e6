"""Options, each declared once, as a field of a dataclass.

Command lines, signatures, docstrings, checks and recipes are made from these fields.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sized
from dataclasses import MISSING, Field, field, fields, replace
from functools import wraps
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

from mdio.core.errors import MdioError, OptionError, PlanError, error_text
from mdio.core.words import did_you_mean, nbytes_from

P = ParamSpec("P")
R = TypeVar("R")

ALLOWED_WITH = {"append": False, "follow": True}
"""Whether an option may be given with these, unless its field says otherwise."""


def option(text: str, spelling: str = "", default: Any = None, **properties: Any) -> Any:
    """Return a field that declares an option.

    `text`: its help. `spelling`: its names on the command line, then the name of its value (``-s
    --top FILE``); an option without a value is a flag, one without a name exists in Python only.
    `properties`: ``kind``, how its text is parsed if that does not follow from its type
    (`mdio.cli.common.PARSER_ARGUMENTS`); ``choices``; ``values``, a flag for each of its values;
    ``alone``, the name of a set of options of which only one may be given; ``named``: signatures
    show it; ``by_name``: functions take it as a keyword, too, not only in an object; ``keys``, of a
    mapping; ``layout_specific``: only some layouts have it; ``append``, ``follow``: whether it may
    be given with these (`ALLOWED_WITH`).
    """
    metadata = {"text": text, "spelling": spelling, **properties}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def declared_fields(*option_sets: Any) -> dict[str, Field[Any]]:
    """Return the fields of dataclasses, or of their instances, by name."""
    return {field.name: field for option_set in option_sets for field in fields(option_set)}


def spell_option(option: Field[Any], value: Any = None) -> str:
    """Return how the command line spells an option that has this `value`."""
    flags = [word for word in option.metadata["spelling"].split() if word.startswith("--")]
    values = option.metadata.get("values", {})
    value_flag = values.get(value) if isinstance(value, str) else None
    return str(value_flag or (flags or [option.name])[0])


def _default(option: Field[Any]) -> Any:
    return option.default if option.default_factory is MISSING else option.default_factory()


def non_defaults(options: Any) -> Iterator[tuple[Field[Any], Any]]:
    """Yield each option that differs from its default, and its value."""
    for option in fields(options):
        value, default = getattr(options, option.name), _default(option)
        is_default = type(value) is type(default) and value == default
        is_scalar = getattr(value, "ndim", None) == 0  # np.array(3), whose type has a length
        if not is_default and (is_scalar or not isinstance(value, Sized) or len(value)):
            yield option, value


def allowed_with(option: Field[Any], mode: str) -> bool:
    """Return whether an option may be given with `mode`, one of `ALLOWED_WITH`."""
    return bool(option.metadata.get(mode, ALLOWED_WITH[mode]))


def check_types(options: Any) -> None:
    """Raise OptionError if an option has a value of a wrong type, or none of its choices.

    Numbers of NumPy become Python's. Choices that a function returns are checked where they are
    used.
    """
    for option in fields(options):
        value = getattr(options, option.name)
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            # A step of np.float32(0.01) is meant to be 0.01.
            value = float(str(value)) if isinstance(value.item(), float) else value.item()
            object.__setattr__(options, option.name, value)
        if value is not None and (expected := _expected(str(option.type).split(" | "), value)):
            raise OptionError(f"{option.name} is {value!r}; give {expected}")
        choices = option.metadata.get("choices") or option.metadata.get("values")
        if choices is None or callable(choices) or value in (default := _default(option), *choices):
            continue
        names = [*dict.fromkeys(filter(None, (*choices, default)))]
        hint = did_you_mean(str(value), names)
        raise OptionError(f"{option.name} is {value!r}{hint}; give one of {', '.join(names)}")


def _expected(types: list[str], value: Any) -> str | None:
    """Return advice for an invalid `value`; None if an option of these types accepts it."""
    is_text, takes_words = isinstance(value, str), any("Literal" in kind for kind in types)
    if "bool" in types:
        return None if value in (True, False) else "True or False"
    if {*types} <= {"str", "None"}:
        return None if is_text else "text"
    if types[0].startswith("Sequence"):
        return "a list" if is_text else None
    if types[0].startswith("Mapping"):
        return None if isinstance(value, Mapping) else "a dict"
    if not (takes_words or {*types} <= {"int", "float", "None"}) or (takes_words and is_text):
        return None
    conversion = {"int": "__index__", "float": "__float__"}.get(types[0])
    if conversion is None:
        return None
    is_number = hasattr(value, conversion) and not hasattr(value, "ndim")
    if is_number and not isinstance(value, bool):
        return None
    return "a whole number" if types[0] == "int" else "a number"


def takes_options(
    *groups: type,
    objects: Mapping[str, type] = MappingProxyType({}),
    further_names: Callable[[Mapping[str, Any]], Collection[str]] = lambda _: (),
    replacements: Mapping[str, str] = MappingProxyType({}),
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Document the ``**options`` of a function, fields of `groups`, and check their names.

    Its signature shows the options that are used most (``named``); in its docstring, a list of all
    replaces ``<options>``. Any other name is an OptionError. `objects`: groups that the function
    takes as objects, by the names of these arguments. Their fields that should not be given by
    their own names are put into the object, with a DeprecationWarning. `further_names`: returns
    names that may be given beside these arguments. `replacements`: what to give for names that it
    does not have.
    """
    declared = declared_fields(*groups)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        own_signature = inspect.signature(function)
        parameters = list(own_signature.parameters.values())
        names = {p.name for p in parameters if p.kind is not p.VAR_KEYWORD}
        names |= declared.keys() | objects.keys()

        @wraps(function)
        def call_checked(*args: P.args, **keywords: P.kwargs) -> R:
            unknown = keywords.keys() - names
            allowed = {*names, *further_names(keywords)} if unknown else names
            for name in unknown - allowed:
                hint = did_you_mean(name, allowed) or f"; it has {', '.join(sorted(allowed))}"
                hint = f"; give {replacements[name]}" if name in replacements else hint
                for option in declared.values():
                    if name in option.metadata.get("keys", ()):
                        hint = f"; it describes the source: {option.name}={{{name!r}: ...}}"
                function_name = function.__qualname__.removesuffix(".__init__")
                raise OptionError(f"{function_name} has no option {name!r}{hint}")
            for name, group in objects.items():
                _move_into_object(group, name, keywords)
            progress = keywords.get("progress")
            if progress is not None and not callable(progress):
                raise OptionError(f"progress is {progress!r}; give a function, or mdio.ProgressBar")
            return function(*args, **keywords)

        named_options = [
            inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=_default(option))
            for option in declared.values()
            if option.metadata.get("named") and option.name not in own_signature.parameters
        ]
        shown_objects = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
            for name in objects
        ]
        signature = own_signature.replace(
            parameters=[*parameters[:-1], *named_options, *shown_objects, parameters[-1]]
        )
        vars(call_checked).update(__signature__=signature, option_names=names)
        text = _options_text(groups, objects)
        call_checked.__doc__ = (function.__doc__ or "").replace("<options>", text)
        return call_checked

    return decorate


def _is_keyword(option: Field[Any]) -> bool:
    return bool(option.metadata.get("named") or option.metadata.get("by_name"))


def _move_into_object(group: Any, name: str, keywords: dict[str, Any]) -> None:
    """Put options of `group` that have no names of their own into the object `keywords[name]`."""
    options: Any = keywords.get(name)
    if not (options is None or isinstance(options, group)):
        raise OptionError(f"{name} is {options!r}; give mdio.{group.__name__}(...)")
    own_options = {option.name: option for option in fields(group) if option.name in keywords}
    changed = [] if options is None else non_defaults(options)
    for key in {option.name for option, _ in changed} & own_options.keys():
        raise OptionError(f"{key} is given twice: by itself and in {name}; give it once")
    deprecated = [key for key, option in own_options.items() if not _is_keyword(option)]
    if deprecated:
        text = ", ".join(f"{key}={keywords[key]!r}" for key in deprecated)
        warnings.warn(
            f"give {name}=mdio.{group.__name__}({text}); by itself, the next version of mdio does "
            f"not take {' and '.join(deprecated)}",
            DeprecationWarning,
            stacklevel=3,
        )
        values = {key: keywords.pop(key) for key in deprecated}
        keywords[name] = group(**values) if options is None else replace(options, **values)


def _options_text(groups: tuple[type, ...], objects: Mapping[str, type]) -> str:
    lines = []
    argument_of = {group: name for name, group in objects.items()}
    for group in groups:
        heading = (group.__doc__ or "").partition("\n")[0]
        if (name := argument_of.get(group)) is not None:
            own_names = [option.name for option in fields(group) if _is_keyword(option)]
            heading += f" As ``{name}=mdio.{group.__name__}(...)``; by themselves, too: "
            heading += f"{', '.join(own_names)}."
        lines += [*textwrap.wrap(heading, 88), ""]
        for option in fields(group):
            value = "False: " if option.default is True else ""
            text = f"- ``{option.name}``: {value}{option.metadata['text']}"
            lines += textwrap.wrap(text, 88, subsequent_indent="  ", break_on_hyphens=False)
        lines.append("")
    return "\n        ".join(lines).rstrip()


def build_options(groups: tuple[type, ...], options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return an object of each dataclass, made from its options among `options`."""
    objects = []
    for group in groups:
        declared = declared_fields(group)
        values = {name: options[name] for name in declared.keys() & options.keys()}
        for name, value in values.items():
            if declared[name].metadata.get("kind") == "nbytes" and isinstance(value, str):
                try:
                    values[name] = nbytes_from(value)
                except ValueError as error:
                    raise OptionError(f"{name}: {error}") from None
        objects.append(group(**values))
        check_types(objects[-1])
    return tuple(objects)


def argument_types(factory: Callable[..., Any], argument: str) -> set[str]:
    """Return the names of the types of an argument: those annotated, else that of its default.

    None is among them where it is the default, and float where a default alone is an integer.
    """
    try:
        parameter = inspect.signature(factory).parameters[argument]
    except (KeyError, TypeError, ValueError):  # there is none, or no signature
        return set()
    annotation, default = parameter.annotation, parameter.default
    if annotation in (parameter.empty, Any, "Any"):
        return {"int", "float"} if type(default) is int else {type(default).__name__}
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    types = {*re.sub(r"^(?:typing\.)?Optional\[(.*)\]$", r"\1 | None", text).split(" | ")}
    return types | {"None"} if default is None else types


def call_factory(factory: Callable[..., R], name: str, arguments: Mapping[str, Any]) -> R:
    """Call a class of another package with `arguments`; raises PlanError if it refuses them.

    A value that is no number, or not True or False, where its signature has one is refused here.
    """
    for key, value in arguments.items():
        types, expected = argument_types(factory, key), ""
        if value is None and "None" in types:
            continue
        is_text, is_float = isinstance(value, str | None), isinstance(value, float)
        if types == {"bool"} and (is_text or isinstance(value, int | float)):
            expected = "" if value in (True, False) else "True or False"
        elif types & {"int", "float"} and types <= {"int", "float", "None"}:
            is_whole = "float" not in types
            if is_text or isinstance(value, bool) or (is_whole and is_float):
                expected = "a whole number" if is_whole else "a number"
        if expected:
            raise PlanError(f"{name}: {key} is {value!r}; give {expected}")
    try:
        return factory(**arguments)
    except (MdioError, MemoryError):
        raise
    except (TypeError, ValueError) as error:
        text = str(error) or error_text(error)
        problem = re.sub(r"^[\w.<>]+\(\) ", "it ", text)  # the name of the class is internal
        advice = "arguments are given with --set (in Python: by name)"
        unknown = re.search(r"unexpected keyword argument '(\w+)'", problem)
        if unknown:
            names = [*inspect.signature(factory).parameters]
            hint = did_you_mean(unknown[1], names)
            advice = f"it has {', '.join(names) or 'none'}{hint}; {advice}"
        elif "abstract class" in problem:
            advice = "a kernel's class has to define it"
        if arguments.keys() == {"select"} or problem.endswith("argument 'select'"):
            advice = (
                "--select (select= in Python) becomes this argument of the class, which lacks it"
            )
        raise PlanError(f"{name}: {problem}; {advice}") from error
    except Exception as error:  # the class of a user raises anything
        raise PlanError(f"{name}: making it failed: {error_text(error)}") from error
