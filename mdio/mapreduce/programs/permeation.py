"""Passages of ions through a channel or any other slab across the box: states and transitions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import Kernel, Prepared, check_positions
from mdio.analysis.system import System
from mdio.core.boxes import edges_from_boxes
from mdio.core.errors import PlanError
from mdio.core.frames import FrameBlock

STATES = ("above", "entered from above", "entered from below", "inside", "below")
"""Names of states by number; ``inside``: the ion has been there since the first frame, so that the
side from which it came is unknown."""
ABOVE, FROM_ABOVE, FROM_BELOW, INSIDE, BELOW = range(5)


@dataclass
class IonPermeation(Kernel):
    """States of ions about a slab across the box, and their transitions: a map-reduce program.

    Keys are ions, by their index in the topology. Columns are ``state``, the number of the last
    state in `STATES`; ``transitions`` (5, 5), how often each state was followed by each other one;
    and ``n_down`` and ``n_up``, the transitions of ions that passed through. Where the box is
    periodic, an ion is above or below the slab, whichever face is nearer, and may go from above to
    below without crossing it; frames must be close enough in time to show a passing ion inside.

    Parameters
    ----------
    ions
        Selection of the atoms that are followed.
    around
        Selection whose mean z, without regard to the box, is the middle of the slab in each frame,
        such as the filter of a channel; by default it is the middle of the box,
        which must then be periodic along z.
    thickness
        Of the slab, angstrom.
    """

    ions: str = "name NA CL K NA+ CL- SOD CLA POT"
    around: str | None = None
    thickness: float = 10.0

    def prepare(self, system: System) -> Prepared:
        if self.thickness <= 0:
            raise PlanError(f"the thickness is {self.thickness} angstrom; give a positive one")
        system.note_unrotated_boxes()
        ions = system.atoms(self.ions)
        around = ions[:0] if self.around is None else system.atoms(self.around)
        atoms = np.union1d(ions, around)
        function = partial(
            heights,
            keys=system.to_topology_indices(ions),
            ions=np.searchsorted(atoms, ions),
            around=np.searchsorted(atoms, around),
        )
        return Prepared(function, atoms)

    def reduce(
        self,
        key: int,  # noqa: ARG002
        frame: NDArray[np.int64],  # noqa: ARG002
        time: NDArray[np.float64],  # noqa: ARG002
        values: dict[str, NDArray[Any]],
    ) -> dict[str, Any]:
        """Return the last state and the transitions of one ion."""
        z = values["z"]
        half_thickness = self.thickness / 2
        outside = np.where(z > half_thickness, ABOVE, np.where(z < -half_thickness, BELOW, INSIDE))
        # The side of the last frame outside; INSIDE if there was none.
        last_outside = np.maximum.accumulate(np.where(outside != INSIDE, np.arange(len(z)), -1))
        side = np.where(last_outside < 0, INSIDE, outside[last_outside])
        entry = np.where(side == ABOVE, FROM_ABOVE, np.where(side == BELOW, FROM_BELOW, INSIDE))
        state = np.where(outside == INSIDE, entry, outside)
        n_states = len(STATES)
        counts = np.bincount(state[:-1] * n_states + state[1:], minlength=n_states**2)
        transitions = counts.reshape(n_states, n_states)
        np.fill_diagonal(transitions, 0)
        return {
            "state": state[-1],
            "transitions": transitions,
            "n_down": transitions[FROM_ABOVE, BELOW],
            "n_up": transitions[FROM_BELOW, ABOVE],
        }


def heights(
    block: FrameBlock, keys: NDArray[np.int64], ions: NDArray[np.int64], around: NDArray[np.int64]
) -> Any:
    """Map a block to the height of each ion above the middle of the slab, angstrom.

    Those that are no numbers are left out.
    """
    check_positions(block)
    height = edges_from_boxes(block.box)[:, 2, 2:].astype(np.float64)
    z = block.positions[:, ions, 2].astype(np.float64)
    middle = height / 2
    if len(around):
        middle = block.positions[:, around, 2].mean(axis=1, dtype=np.float64, keepdims=True)
    elif not height.all():
        raise ValueError(
            "a frame has no box along z, so that the middle of the slab is unknown; give atoms "
            "that lie around it with --set around=SELECTION (around= in Python)"
        )
    z -= middle
    with np.errstate(divide="ignore", invalid="ignore"):  # frames without a box
        z -= np.where(height > 0, np.rint(z / height) * height, 0)
    rows, columns = np.nonzero(np.isfinite(z))
    return keys[columns], rows, {"z": z[rows, columns]}
