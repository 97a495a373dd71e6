"""One frame as a structure file (GRO or PDB), as MDAnalysis writes it."""

from __future__ import annotations

import time
import warnings
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from mdio.converters.options import ConversionOptions, ConvertResult, Progress
from mdio.converters.selection import (
    PDB_NAME_LETTERS,
    SelectedAtoms,
    notes_on_cut_names,
    notes_on_missing_bonds,
    stored_universe,
)
from mdio.converters.strategies.conversion import Conversion
from mdio.converters.strategies.job import Job
from mdio.core.errors import OutputError, PlanError
from mdio.core.files.publish import publish
from mdio.core.files.store import require_disk
from mdio.core.frames import FrameBlock
from mdio.core.options import non_defaults, spell_option
from mdio.parallel.executors import Executor

STRUCTURE_PRECISIONS = MappingProxyType({".gro": 0.01, ".pdb": 0.001})
"""Step of positions in these files by suffix, in angstrom."""
NAME_LETTERS = MappingProxyType({".gro": 5, ".pdb": PDB_NAME_LETTERS})
"""Letters of the name of an atom or a residue that these files hold."""
ATOM_NBYTES = MappingProxyType({".gro": 69, ".pdb": 113})
"""Most bytes of an atom: in GRO with velocities, in PDB a line and one of its bonds."""
HEADER_NBYTES = 1000
"""Most bytes of everything but the atoms: title, box."""
STRUCTURE_LAYOUT = "trr"
"""Layout as which a structure file is planned: it holds all fields of a frame."""


def is_structure(out: Path, to: str | None) -> bool:
    """Return whether an output is a structure file, by its suffix."""
    return to is None and out.suffix.lower() in STRUCTURE_PRECISIONS


def check_structure(out: Path, options: ConversionOptions) -> None:
    """Refuse options that a structure file has no place for; raises PlanError."""
    require_disk(out, "structure files are written to disk")
    flags = ["--group"] if options.selection.groups else []
    flags += [spell_option(*declared) for declared in non_defaults(options.storage)]
    if flags:
        raise PlanError(f"{out}: {flags[0]} is not for a structure file; leave it out")
    if options.running.source_grows:
        raise PlanError(f"{out}: a structure file holds one frame, and follows no simulation")


class StructureConversion(Conversion):
    """A planned structure file of one frame."""

    def __init__(self, job: Job) -> None:
        suffix = job.out.suffix.lower()
        if job.view.info.n_frames != 1:
            raise PlanError(
                f"{job.out}: a structure file holds one frame, and {job.view.info.n_frames} are "
                "chosen; choose one, such as --start 0 --stop 1 (start=, stop= in Python)"
            )
        if job.selected_atoms.universe is None and job.selected_atoms.source_topology is None:
            raise PlanError(
                f"{job.out}: a structure file names its atoms, and the source does not; give a "
                "topology with -s/--top FILE (top= in Python)"
            )
        present = job.plan.native.fields
        fields = [name for name in ("positions", "velocities") if name in present]
        fields = fields[:1] if suffix == ".pdb" else fields
        notes = [f"positions are rounded to steps of {STRUCTURE_PRECISIONS[suffix]:g} angstrom"]
        if left_out := present[len(fields) :]:
            notes.append(f"{suffix[1:]} holds no {' and no '.join(left_out)}: left out")
        notes += notes_on_cut_names(
            job.selected_atoms.topology,
            suffix[1:],
            NAME_LETTERS[suffix],
            holds_segments=suffix == ".pdb",
        )
        if suffix == ".pdb":
            notes += notes_on_missing_bonds(job.selected_atoms.topology, "pdb")
        plan = job.plan.replace(
            layout=suffix[1:],
            container=suffix[1:],
            fields=tuple(fields),
            precision=STRUCTURE_PRECISIONS[suffix],
            nbytes=HEADER_NBYTES + ATOM_NBYTES[suffix] * job.plan.n_atoms,
            notes=(*job.plan.notes, *notes),
        )
        super().__init__(job, plan)

    def run(
        self,
        executor: Executor,
        *,
        force: bool = False,
        resume: bool = False,  # noqa: ARG002 - one frame is written again
        progress: Progress | None = None,
    ) -> ConvertResult:
        """Write the frame where the output is owned; see `Conversion.run`."""
        return executor.from_owner(partial(self._write_frame, force, progress))

    def _write_frame(self, force: bool, progress: Progress | None) -> ConvertResult:
        start_s = time.perf_counter()
        sources = [*self.job.files, *self.job.other_files]
        with publish(self.out, force=force, sources=sources) as temporary, self.view:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # fields that the topology lacks are filled in
                try:
                    block = self.view.read(0, 1)
                    self._place_atoms(block).write(str(temporary), file_format=self.plan.layout)
                    self._write_title(temporary, block)
                except ValueError as error:
                    raise OutputError(
                        f"{self.out}: MDAnalysis cannot write this frame as "
                        f"{self.plan.layout.upper()} ({error}); take another format"
                    ) from error
            nbytes = temporary.stat().st_size
        if progress is not None:
            progress(1, self.view.info.frame_nbytes)
        seconds = time.perf_counter() - start_s
        return self.job.result(self.plan, nbytes_out=nbytes, seconds=seconds, workers=1)

    def _write_title(self, path: Path, block: FrameBlock) -> None:
        """Name time and step as GROMACS does, in place of the title that MDAnalysis writes."""
        title = f"Written by mdio t= {block.time[0]:.5f} step= {block.step[0]}\n".encode()
        text = path.read_bytes()
        prefix = b"TITLE     " if self.plan.layout == "pdb" else b""
        begin = text.index(prefix)
        end = text.index(b"\n", begin) + 1
        path.write_bytes(text[:begin] + prefix + title + text[end:])

    def _place_atoms(self, block: FrameBlock) -> Any:
        """Return the chosen atoms, as they are in the frame."""
        import MDAnalysis as mda

        selected_atoms = self.selected_atoms
        universe = selected_atoms.universe
        if universe is None:
            assert selected_atoms.source_topology is not None
            universe = stored_universe(selected_atoms.source_topology, self.view.source)
        merged = mda.Merge(SelectedAtoms(universe, selected_atoms.atoms, {}).atom_group())
        ts = merged.trajectory.ts
        ts.positions = block.positions[0]
        ts.dimensions = block.box[0] if block.box[0].any() else None
        if block.velocities is not None:
            ts.velocities = block.velocities[0]
        return merged.atoms
