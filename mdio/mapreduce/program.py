"""What a map-reduce computes: a map, a reduce, and perhaps a combiner between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from mdio.analysis.kernels.kernel import BlockFunction, Kernel, UserKernel, kernel_name
from mdio.core.errors import PlanError
from mdio.mapreduce.frames import Frames
from mdio.mapreduce.pairs import Pairs, as_values

COMBINERS = {"sum": np.add, "min": np.minimum, "max": np.maximum}


@dataclass(frozen=True, slots=True)
class Program:
    """A map and a reduce, and how they want to be called; see `mdio.mapreduce.driver`."""

    kernel: Kernel
    reduce: Callable[..., Any]
    combine: Callable[..., Any] | str | None = None
    per_frame: bool = False
    frames: Frames | None = None

    @classmethod
    def of(
        cls,
        map: Kernel | BlockFunction,
        reduce: Callable[..., Any] | None = None,
        combine: Callable[..., Any] | str | None = None,
        per_frame: bool | None = None,
        frames: Frames | None = None,
        select: str | None = None,
        fields: tuple[str, ...] | None = None,
    ) -> Program:
        """Put a program together; what is not given is asked of the object that has the map.

        Raises PlanError: there is no map or no reduce.
        """
        owner = map if isinstance(map, Kernel) else getattr(map, "__self__", None)
        if isinstance(map, Kernel):
            kernel: Kernel = map
            if select is not None:
                raise PlanError(
                    f"give the selection to the program: {type(map).__name__} has its own"
                )
        elif callable(map) and not isinstance(map, type):
            chosen = select if select is not None else getattr(owner, "select", None)
            wanted: tuple[str, ...] = getattr(owner, "fields", ("positions",))
            kernel = UserKernel(map, chosen, tuple(fields or wanted))
        else:
            if isinstance(map, type):
                raise PlanError(
                    f"the map is the class {map.__name__}; make a program of it and give its map: "
                    f"map={map.__name__}(...).map"
                )
            raise PlanError(
                f"the map is {map!r}; give a function that takes a block of frames and returns "
                "keys, rows and values"
                + (", such as its method: map=program.map" if hasattr(map, "map") else "")
            )
        reduce = reduce if reduce is not None else getattr(owner, "reduce", None)
        if not callable(reduce):
            raise PlanError(
                "there is no reduce; give reduce=, a function of a key, frames, times and values, "
                "or a method reduce beside the map"
            )
        combine = combine if combine is not None else getattr(owner, "combine", None)
        if combine is not None and not callable(combine) and combine not in COMBINERS:
            raise PlanError(f"combine is {combine!r}; give one of {', '.join(COMBINERS)}")
        per_frame = bool(getattr(owner, "per_frame", False)) if per_frame is None else per_frame
        frames = frames if frames is not None else getattr(owner, "frames", None)
        return cls(kernel, reduce, combine, per_frame, frames)


@dataclass(frozen=True, slots=True)
class Combined:
    """Makes fewer pairs of sorted ones, before they travel."""

    combine: Callable[..., Any] | str

    def __call__(self, pairs: Pairs) -> Pairs:
        """Return what is left of the sorted pairs of some frames."""
        if isinstance(self.combine, str):
            firsts = pairs.groups()[:-1]
            join = COMBINERS[self.combine]
            values = {name: join.reduceat(one, firsts) for name, one in pairs.values.items()}
        else:
            firsts, given = self.combine(pairs.keys, pairs.values)
            firsts = np.asarray(firsts, np.int64)
            values = as_values(given, len(firsts))
        columns = [pairs.keys[firsts], pairs.at[firsts], *values.values()]
        if len(firsts) and not (firsts.min() >= 0 and np.all(np.diff(firsts) > 0)):
            raise ValueError(f"{kernel_name(self.combine)} gave rows that do not ascend")  # type: ignore[arg-type]
        return Pairs(tuple(values), columns)
