"""Agreement of ranks before steps that they can only take together.

A collective call into a library (parallel HDF5) cannot be left by one rank alone: the others would
wait within it for ever. So ranks tell each other before each such call how they are, and if one has
failed, all raise its error. What has failed within the library itself cannot be mended: then the
program is ended.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mdio.parallel.pool import picklable
from mdio.parallel.ranks.run import FORWARD_S, abort
from mdio.parallel.sleeping import Nap, any_of


class Agreement:
    """Lets ranks agree to go on (collective calls, in the same order on all ranks).

    `comm`: an mpi4py intracommunicator; it is duplicated, so that a rank that is elsewhere when
    another one asks cannot answer by mistake. `unfinished`: returns the files to remove before the
    program is ended, the output's own first; there may be none. `grace_s`: how long a rank that has
    failed waits for the others before it ends the program.
    """

    def __init__(
        self, comm: Any, unfinished: Callable[[], Sequence[Path]], grace_s: float = 5.0
    ) -> None:
        self._comm = comm.Dup()
        self._unfinished = unfinished
        self._grace_s = grace_s

    def reach(
        self,
        error: BaseException | None = None,
        *,
        number: int = 0,
        broken: bool = False,
    ) -> None:
        """Return on all ranks if none has failed; otherwise raise the same error on all.

        `error`: what has failed here. `number`: of several errors, that with the lowest number is
        raised. `broken`: whether it has failed within a collective call, so that the program has to
        end.
        """
        deadline, nap = time.monotonic() + self._grace_s, Nap()

        def wait(ready: Callable[[], bool]) -> None:
            while not ready():
                if error is not None and time.monotonic() > deadline:
                    self._end(error, is_ours=True)
                nap.take()

        if not any_of(self._comm, error is not None, wait):
            return
        outcomes = self._comm.allgather((number, picklable(error), broken))
        first_number, first, _ = min(
            (outcome for outcome in outcomes if outcome[1] is not None), key=lambda one: one[0]
        )
        is_ours = error is not None and number == first_number
        if any(outcome[2] for outcome in outcomes):
            self._end(first, is_ours)
        raise error if error is not None and is_ours else first

    def close(self) -> None:
        """Free the communicator (collective)."""
        self._comm.Free()

    def _end(self, error: BaseException, is_ours: bool) -> NoReturn:
        """Remove what is unfinished, say why, once, and end the whole program."""
        from mpi4py import MPI

        unfinished = self._unfinished()
        speaks = is_ours and not unfinished
        for number, path in enumerate(unfinished):
            try:
                path.unlink()
                speaks = speaks or number == 0
            except OSError:  # another rank was first, or it was never made
                continue
        if speaks:
            abort(self._comm, error)
        time.sleep(4 * FORWARD_S)  # until the rank that was first has spoken
        sys.stderr.flush()
        MPI.COMM_WORLD.Abort(1)
        raise error  # not reached: Abort does not return
