"""Residence of water near a selection: stays and survival probability."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.analysis.kernels.kernel import Kernel, Prepared, check_positions
from mdio.analysis.system import System
from mdio.core.errors import PlanError
from mdio.core.frames import FrameBlock
from mdio.core.kernels import within
from mdio.layouts.cut_molecules import NoCellFinder
from mdio.mapreduce.results import MapReduceResult


@dataclass
class WaterResidence(Kernel):
    """Stays of waters within a distance of a selection: a map-reduce program.

    Keys are atoms of the water, by their index in the topology. Columns are ``n_frames``, how many
    frames each was near; ``n_stays``, in how many runs of frames; ``longest_ps``, from the first to
    the last frame of the longest one; and ``alive`` (tau_max + 1,): the number of its frames after
    which it stays for tau more frames, each divided by the number of waters near in that frame.
    `survival_probability` turns these into a probability.

    Parameters
    ----------
    water
        Selection of one atom a molecule.
    around
        Selection near which waters are counted.
    radius
        Angstrom; periodic images count.
    tau_max
        The longest time of the survival probability, in frames.
    """

    water: str = "name OW"
    around: str = "protein"
    radius: float = 3.5
    tau_max: int = 20

    def prepare(self, system: System) -> Prepared:
        if self.radius <= 0 or self.tau_max < 0:
            raise PlanError(f"radius {self.radius} and tau_max {self.tau_max} cannot be negative")
        system.note_unrotated_boxes()
        around = system.atoms(self.around)
        water = np.setdiff1d(self._waters(system), around)
        if not len(water):
            raise PlanError(f"all atoms of {self.water!r} are among {self.around!r}")
        atoms = np.union1d(around, water)
        function = partial(
            near,
            keys=system.to_topology_indices(water),
            around=np.searchsorted(atoms, around),
            water=np.searchsorted(atoms, water),
            radius=self.radius,
        )
        return Prepared(function, atoms, doubt_finder=NoCellFinder())

    def _waters(self, system: System) -> NDArray[np.int64]:
        """Return the atoms of the water; if there are none, the error names the system's waters."""
        try:
            return system.atoms(self.water)
        except PlanError as error:
            if not system.waters:
                raise
            names = " ".join(system.waters)
            raise PlanError(
                f"{error}; its water seems to be called {names}: give "
                f"--set water='resname {names} and name O*' (water= in Python)"
            ) from error

    def begin(self, frame: NDArray[np.int64], time: NDArray[np.float64]) -> None:
        """Store the numbers of all mapped frames: a stay continues from one to the next."""
        del time
        self._frame = frame

    def reduce(
        self,
        key: int,  # noqa: ARG002
        frame: NDArray[np.int64],
        time: NDArray[np.float64],
        values: dict[str, NDArray[Any]],
    ) -> dict[str, Any]:
        """Return the stays of one water."""
        positions = self._frame.searchsorted(frame)
        breaks = (positions[1:] - positions[:-1] > 1).nonzero()[0]
        starts = np.concatenate(([0], breaks + 1))
        ends = np.concatenate((breaks, [len(positions) - 1]))
        frames_left = ends.repeat(ends - starts + 1) - np.arange(len(positions))
        # Alive after tau frames: those that have at least as many left in their stay.
        share = 1 / values["n_near"]
        alive = np.bincount(np.minimum(frames_left, self.tau_max), share, self.tau_max + 1)
        return {
            "n_frames": len(frame),
            "n_stays": len(starts),
            "longest_ps": (time[ends] - time[starts]).max(),
            "alive": alive[::-1].cumsum()[::-1],
        }


def near(
    block: FrameBlock,
    keys: NDArray[np.int64],
    around: NDArray[np.int64],
    water: NDArray[np.int64],
    radius: float,
) -> Any:
    """Map a block to the waters that are near, with the number of them in each frame."""
    check_positions(block)
    is_near = within(block.positions, block.box, around, water, radius)
    rows, columns = np.nonzero(is_near)
    n_near = np.count_nonzero(is_near, axis=1).astype(np.int32)
    return keys[columns], rows, {"n_near": n_near[rows]}


def survival_probability(result: MapReduceResult) -> NDArray[np.float64]:
    """Return the probability that a water that is near has not left tau frames later.

    The mean, over all frames with any water near, of the share of their waters that is near in each
    of the next tau frames (as `waterdynamics.SurvivalProbability` without intermittency).

    Parameters
    ----------
    result
        A result of `WaterResidence`; frames of several trajectories count alike.

    Returns
    -------
    (tau_max + 1,) float64
        NaN where no frame has tau frames after it.

    Raises
    ------
    PlanError
        No water was near in any frame.
    """
    if not len(result.keys):
        raise PlanError("no water is near in any frame; choose a larger radius, or other atoms")
    alive = result.columns["alive"].sum(axis=0)
    n_begins = np.zeros(len(alive))
    for part in result.trajectories():
        n_pairs = result.n_pairs[part]
        for tau in range(min(len(alive), len(n_pairs))):
            n_begins[tau] += np.count_nonzero(n_pairs[: len(n_pairs) - tau])
    with np.errstate(invalid="ignore"):
        probability: NDArray[np.float64] = alive / n_begins
    return probability
