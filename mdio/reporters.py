"""Reporters: simulation programs call them while they run, to store frames.

They do not import the simulation program, which passes its objects to them.
"""

from __future__ import annotations

from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdio.converters.writer import Writer
from mdio.core.boxes import boxes_from_vectors
from mdio.core.errors import OutputError, PlanError
from mdio.core.words import number_text
from mdio.layouts.base import atom_indices
from mdio.layouts.registry import open_layout

ANGSTROM_PER_NM = 10.0


class OpenMMReporter:
    """Stores frames of a simulation of OpenMM, in the background, a shard at a time.

    It follows OpenMM's protocol: append it to ``simulation.reporters``. The topology of the
    simulation is stored, too.

    Parameters
    ----------
    out
        Output; its suffix names the layout.
    interval
        Steps between frames.
    atoms
        Atoms that are stored, in this order: a selection of MDAnalysis, a mask, or indices; all by
        default.
    velocities, forces
        Whether to store these, too.
    periodic
        Whether molecules are put into the box (OpenMM's ``enforcePeriodicBox``); by default, OpenMM
        decides.
    append
        Append to an existing output, or create one: frames that a simulation repeats after a
        restart from a checkpoint are replaced. A simulation that begins at step 0, at a time that
        the output already has, is refused. False refuses an existing output.
    **options
        Those of `mdio.Writer`: ``precision``, ``storage``, ``groups``, ``every_s``, ``force``.

    Raises
    ------
    PlanError
        Invalid options, or an invalid selection.
    OutputError
        The output cannot be written: raised in a step of the simulation.

    Examples
    --------
    >>> import mdio.reporters, os, tempfile
    >>> os.chdir(tempfile.mkdtemp())
    >>> reporter = mdio.reporters.OpenMMReporter("md.zarr", 1000, atoms="protein", precision=0.01)
    >>> reporter.close()
    """

    def __init__(
        self,
        out: str | PathLike[str],
        interval: int,
        *,
        atoms: str | ArrayLike | None = None,
        velocities: bool = False,
        forces: bool = False,
        periodic: bool | None = None,
        append: bool = True,
        **options: Any,
    ) -> None:
        if not isinstance(interval, int | np.integer) or interval < 1:
            raise PlanError(
                f"{out}: a frame every {interval} steps; give a whole number, 1 or more"
            )
        self._append = append and not options.get("force", False)
        self.writer = Writer(
            out, append=self._append, velocities=velocities, forces=forces, **options
        )
        self.interval = interval
        self._selection, self._periodic = atoms, periodic
        self._fields = ["velocities"] * velocities + ["forces"] * forces
        self._atoms: NDArray[np.int64] | None = None
        self._has_box: bool | None = None

    def describeNextReport(self, simulation: Any) -> dict[str, Any]:  # noqa: N802 - OpenMM's name
        """Return the steps to the next frame, and the data that it needs; called by OpenMM."""
        if self._has_box is None:
            self._set_system(simulation)
        steps = self.interval - simulation.currentStep % self.interval
        include = ["positions", *self._fields]
        return {"steps": steps, "periodic": self._periodic, "include": include}

    def report(self, simulation: Any, state: Any) -> None:
        """Write a frame; OpenMM calls it.

        Parameters
        ----------
        simulation : openmm.app.Simulation
            Its current step is stored.
        state : openmm.State
            Positions, box and time; velocities and forces if they are stored.
        """
        # Plain numbers in OpenMM's own units: nm, ps, kJ/(mol nm).
        positions = self._stored_values(state.getPositions(asNumpy=True)) * ANGSTROM_PER_NM
        fields = {}
        if "velocities" in self._fields:
            fields["velocities"] = (
                self._stored_values(state.getVelocities(asNumpy=True)) * ANGSTROM_PER_NM
            )
        if "forces" in self._fields:
            fields["forces"] = self._stored_values(state.getForces(asNumpy=True)) / ANGSTROM_PER_NM
        box = None
        if self._has_box:
            vectors = np.array(state.getPeriodicBoxVectors(asNumpy=True)._value, np.float64)
            box = boxes_from_vectors(vectors[np.newaxis], ANGSTROM_PER_NM)[0]
        self.writer.write_block(
            positions, box=box, time=state.getTime()._value, step=simulation.currentStep, **fields
        )

    def close(self) -> None:
        """Store the last frames; without it, this happens when the program ends."""
        self.writer.close()

    def _stored_values(self, quantity: Any) -> NDArray[np.float64]:
        """Return the numbers of the stored atoms, without OpenMM's unit."""
        values: NDArray[np.float64] = quantity._value
        return values if self._atoms is None else values[self._atoms]

    def _set_system(self, simulation: Any) -> None:
        """Set topology, stored atoms and whether there is a box from the simulation."""
        from MDAnalysis import Universe
        from MDAnalysis.converters.OpenMMParser import OpenMMTopologyParser

        from mdio.layouts.foreign.universe import select_by_mdanalysis

        topology = OpenMMTopologyParser(simulation.topology).parse()
        every_atom = Universe(topology, to_guess=()).atoms
        selection, group, name = self._selection, every_atom, self.writer.out
        if selection is not None:
            if isinstance(selection, str):
                selection = select_by_mdanalysis(every_atom, selection, f"{name}: atoms")
            self._atoms = atom_indices(selection, len(every_atom), name)
            group = every_atom[self._atoms]
        self.writer.set_atoms(group)
        if self._append and simulation.currentStep == 0:
            self._refuse_another_run(simulation.context.getState().getTime()._value)
        self._has_box = bool(simulation.system.usesPeriodicBoundaryConditions())

    def _refuse_another_run(self, time_ps: float) -> None:
        """Refuse to replace frames by those of a simulation that was not restarted.

        `time_ps`: time at which the simulation begins.
        """
        for path in self.writer.existing_paths()[:1]:
            with open_layout(path) as output:
                end_ps = output.info.time_last_ps
            if end_ps > time_ps:
                raise OutputError(
                    f"{path}: has frames up to {number_text(end_ps)} ps, and this simulation "
                    f"begins at step 0 and {number_text(time_ps)} ps, so that its frames would "
                    "replace others; load the checkpoint before it runs, choose another output, "
                    "or replace this one with force=True"
                )
