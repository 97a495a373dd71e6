"""The user's own analysis: found by name, made ready once, tried on a few frames first.

A function that nobody here has seen may fail, return the wrong thing, or take a minute for one
frame. So it first runs in a process of its own that can be stopped, on one frame, then on more.
"""

from __future__ import annotations

import multiprocessing
import pickle
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from mdio.analysis.kernels.kernel import (
    KERNELS,
    BlockFunction,
    Kernel,
    Prepared,
    UserKernel,
    check_rows,
)
from mdio.analysis.reducers import Stack
from mdio.analysis.system import System
from mdio.core.errors import BlockError, MdioError
from mdio.core.frames import FrameBlock
from mdio.core.signals import ending_signals_held, let_ending_signals_in
from mdio.layouts.base import Layout
from mdio.parallel.pool import start_method

START_S = 60.0
"""How long a process may take to start, which imports anew where it cannot be forked."""
END_S = 2.0
"""How long it may take to end: what it has of the system it gives back by itself."""
TRIAL_S = 0.25
"""Computing goes on with more frames until it has taken this long."""


def analysis_name(analysis: str | Kernel | BlockFunction) -> str:
    """Return what the command line calls an analysis."""
    if isinstance(analysis, str):
        return analysis
    for name, kernel in KERNELS.items():
        if isinstance(kernel, type) and isinstance(analysis, kernel):
            return name
    function = analysis.function if isinstance(analysis, UserKernel) else analysis
    module = getattr(function, "__module__", None) or "module"
    return f"{module}:{getattr(function, '__qualname__', type(function).__name__)}"


@dataclass(frozen=True)
class Ready(Kernel):
    """A kernel that was made ready before, for the same atoms in another layout."""

    ready: Prepared

    def prepare(self, system: System) -> Prepared:  # noqa: ARG002
        """Return what was prepared."""
        return self.ready


def read_only(prepared: Prepared) -> Prepared:
    """Return a kernel that reads what `prepared` reads and computes nothing."""
    return Prepared(_nothing, prepared.atoms, Stack(), prepared.fields)


def _nothing(block: FrameBlock) -> Any:
    return np.zeros((block.n_frames, 1))


@dataclass(frozen=True)
class Probe:
    """What computing takes."""

    t_comp_frame_s: float
    result_nbytes_frame: float
    finished: bool
    """Whether one frame was computed in the time allowed; if not, it takes longer than that."""


def probe(layout: Layout, prepared: Prepared, cap_s: float) -> Probe:
    """Run the analysis on one frame, then on more while time is left, in a process of its own.

    Raises BlockError: the function failed, or did not return one row a frame, or its process died.
    """
    context: Any = multiprocessing.get_context(start_method())
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_compute, args=(theirs, layout, prepared, cap_s), daemon=True)
    with ending_signals_held():
        process.start()
    theirs.close()
    last: Probe | None = None
    try:
        if ours.poll(START_S):
            ours.recv()
        deadline = time.monotonic() + cap_s
        while ours.poll(max(0.0, deadline - time.monotonic())):
            message = ours.recv()
            if isinstance(message, BaseException):
                raise message
            if message is None:
                process.join(END_S)
                break
            last = message
    except EOFError:
        if last is None:
            process.join()
            raise BlockError(
                "the analysis ended its process at the first frame "
                f"(exit code {process.exitcode}); try it with mdio analyze --stop 1"
            ) from None
    finally:
        process.kill()
        process.join()
        ours.close()
    return last or Probe(cap_s, 0.0, finished=False)


def _compute(pipe: Connection, layout: Layout, prepared: Prepared, cap_s: float) -> None:
    let_ending_signals_in()
    pipe.send(None)  # it is there
    try:
        # Pickled, a layout leaves the parent's open files behind.
        own = pickle.loads(pickle.dumps(layout))
        for found in _trials(own, prepared, cap_s):
            pipe.send(found)
        pipe.send(None)
    except MdioError as error:
        pipe.send(error)
    except Exception as error:
        name = getattr(prepared.function, "__name__", type(prepared.function).__name__)
        pipe.send(BlockError(f"{name} failed: {type(error).__name__}: {error}"))


def _trials(layout: Layout, prepared: Prepared, cap_s: float) -> Iterator[Probe]:
    """Yield what more and more frames give; each one is read first, untimed."""
    function, n_frames, spent_s = prepared.function, 1, 0.0
    while spent_s < min(TRIAL_S, cap_s / 4):
        n_frames = min(n_frames, layout.info.n_frames)
        block = layout.read(0, n_frames, atoms=prepared.atoms)
        begun = time.perf_counter()
        rows = check_rows(function(block), range(n_frames), function)
        took_s = time.perf_counter() - begun
        spent_s += took_s
        yield Probe(took_s / n_frames, rows.nbytes / n_frames, finished=True)
        if n_frames >= min(layout.info.n_frames, 256) or 4 * took_s > cap_s / 2:
            return
        n_frames *= 4
