"""Classes of other packages, found by their entry points."""

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
    skipped: MutableMapping[str, str] | None = None,
    check: Callable[[Any], None] = lambda _: None,
) -> dict[str, Any]:
    """Return classes by the names of their entry points in `group`.

    `reserved`: names that mdio uses itself. `from_function`: makes a class from a function, where
    an entry point may be one. Entry points that cannot be used, or for which `check` raises, are
    left out, with a warning; with `skipped`, the reason is added there by name instead.
    """
    from importlib.metadata import entry_points  # takes as long to import as all of mdio

    classes: dict[str, Any] = {}
    for entry_point in entry_points(group=group):
        try:
            if entry_point.name in reserved or entry_point.name in classes:
                raise TypeError("the name is taken")
            cls = entry_point.load()
            if from_function is not None and callable(cls) and not isinstance(cls, type):
                cls = from_function(cls)
            elif not (isinstance(cls, type) and issubclass(cls, base)):
                raise TypeError(f"{cls!r} is not a subclass of {base.__module__}.{base.__name__}")
            check(cls)
            classes[entry_point.name] = cls
        except Exception as error:  # the other classes can still be used
            kind = group.removeprefix("mdio.").removesuffix("s")
            reason = f"the {kind} {entry_point.name!r} ({entry_point.value}) is left out: {error}"
            if skipped is None:
                warnings.warn(reason, stacklevel=2)
            else:
                skipped[entry_point.name] = reason
    return classes
