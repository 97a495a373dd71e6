"""Classes of other distributions, found by their entry points."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, MutableMapping
from typing import Any, TypeVar

T = TypeVar("T")


def find_plug_ins(
    group: str,
    base: type[T],
    reserved: Collection[str],
    from_function: Callable[[Any], Any] | None = None,
    left_out: MutableMapping[str, str] | None = None,
    check: Callable[[Any], None] = lambda _: None,
) -> dict[str, Any]:
    """Return classes by the names of their entry points in `group`.

    `reserved`: names that mdio uses itself. `from_function`: makes one of a function, where that
    may be given. What cannot be used, or what `check` raises for, is left out, with a warning;
    where `left_out` is given, the reason is added there instead, for an error once somebody wants
    the class.
    """
    from importlib.metadata import entry_points  # takes as long to import as all of mdio

    classes: dict[str, Any] = {}
    for point in entry_points(group=group):
        try:
            if point.name in reserved or point.name in classes:
                raise TypeError("the name is taken")
            cls = point.load()
            if from_function is not None and callable(cls) and not isinstance(cls, type):
                cls = from_function(cls)
            elif not (isinstance(cls, type) and issubclass(cls, base)):
                raise TypeError(f"{cls!r} is not a subclass of {base.__module__}.{base.__name__}")
            check(cls)
            classes[point.name] = cls
        except Exception as error:  # the other classes can still be used
            kind = group.removeprefix("mdio.").removesuffix("s")
            reason = f"the {kind} {point.name!r} ({point.value}) is left out: {error}"
            if left_out is None:
                warnings.warn(reason, stacklevel=2)
            else:
                left_out[point.name] = reason
    return classes
