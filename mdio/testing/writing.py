"""Tests of every writable layout; each layout's tests subclass them and provide a case.

::

    class TestWriting(LayoutWriterTests):
        @pytest.fixture
        def case(self):
            return WritingCase(ZarrWriter, ZarrLayout, "out.zarr")

Layouts that round positions override `check_positions`; those that store less of a frame than
a block has (no steps, times in single precision) override `check_column`.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from mdio.core.errors import OutputError
from mdio.core.frames import FrameBlock
from mdio.layouts.base import Layout
from mdio.layouts.plan import LayoutPlan, WriteOptions
from mdio.layouts.writer import LayoutWriter, OutputMeta
from mdio.testing.blocks import info_of, random_block, store_piece

__all__ = ["LayoutWriterTests", "WritingCase"]

N_FRAMES, N_ATOMS = 13, 23


@dataclass(frozen=True)
class WritingCase:
    """A writer, the layout that reads its outputs, and the frames that are written."""

    writer_class: type[LayoutWriter]
    layout_class: type[Layout]
    name: str
    """Name of the output, with its suffix."""
    options: WriteOptions = field(default_factory=WriteOptions)
    piece_frames: int | None = None
    """Frames of a piece, for layouts whose plan does not fix them; None: as planned."""
    velocities: bool = False
    forces: bool = False

    def block(self) -> FrameBlock:
        """Return the frames that are written, the same every time."""
        return random_block(N_FRAMES, N_ATOMS, velocities=self.velocities, forces=self.forces)

    def plan(self) -> LayoutPlan:
        """Return the plan of the output."""
        plan = self.writer_class.plan_for(info_of(self.block()), self.options)
        return plan if self.piece_frames is None else plan.replace(piece_frames=self.piece_frames)

    def writer(self, folder: Path) -> LayoutWriter:
        """Return a writer in `folder` that has created its output."""
        block = self.block()
        meta = OutputMeta(
            uuid="0" * 32,
            created="2020-01-01T00:00:00+00:00",
            source=dict.fromkeys(("path", "layout"), "source"),
            dt_ps=info_of(block).dt_ps,
            frames=[[0, block.n_frames, 1]],
        )
        writer = self.writer_class(folder / self.name, self.plan(), meta)
        writer.create()
        return writer


class LayoutWriterTests:
    """The contract of `mdio.layouts.writer.LayoutWriter`."""

    def check_positions(self, actual: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
        """Compare positions; bit for bit by default."""
        assert_array_equal(actual, expected)

    def check_column(self, name: str, actual: NDArray[Any], expected: NDArray[Any]) -> None:
        """Compare box, time or step; bit for bit by default."""
        assert_array_equal(actual, expected, name)

    def check(self, case: WritingCase, path: Path) -> None:
        """Read an output and compare it with the written frames."""
        expected = case.block()
        with case.layout_class(path) as layout:
            assert layout.info.n_atoms == N_ATOMS
            block = layout.read(0, layout.info.n_frames)
        self.check_positions(block.positions, expected.positions)
        for name in ("box", "time", "step"):
            self.check_column(name, getattr(block, name), getattr(expected, name))
        for name in ("velocities", "forces"):
            actual_field, expected_field = getattr(block, name), getattr(expected, name)
            assert (actual_field is None) == (expected_field is None), name
            if actual_field is not None:
                assert_array_equal(actual_field, expected_field, name)

    def write(
        self, case: WritingCase, writer: LayoutWriter, pieces: Iterable[tuple[int, int]]
    ) -> None:
        """Write `pieces` with a pickled copy of the writer, as workers of a conversion do."""
        worker = pickle.loads(pickle.dumps(writer))
        storing_writer = worker if writer.facts.parallel_store else writer
        try:
            for piece in pieces:
                writer.commit(store_piece(worker, case.block(), piece, storing_writer))
        finally:
            worker.abort()

    def test_a_plan_is_pure_and_covers_all_frames(
        self, case: WritingCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        before = list(tmp_path.iterdir())
        plan = case.plan()
        assert plan == case.plan()
        assert list(tmp_path.iterdir()) == before
        assert (plan.n_frames, plan.n_atoms) == (N_FRAMES, N_ATOMS)
        pieces = plan.write_tasks()
        assert [frame for piece in pieces for frame in range(*piece)] == list(range(N_FRAMES))
        assert plan.nbytes > 0
        assert plan.to_json()["layout"] == plan.layout

    @pytest.mark.parametrize("order", ["forwards", "backwards"])
    def test_what_was_written_is_read(self, case: WritingCase, tmp_path: Path, order: str) -> None:
        writer = case.writer(tmp_path)
        pieces = writer.plan.write_tasks()
        self.write(case, writer, pieces if order == "forwards" else pieces[::-1])
        writer.finish()
        self.check(case, tmp_path / case.name)
        assert case.layout_class.sniff(tmp_path / case.name)

    def test_encoding_changes_nothing(self, case: WritingCase, tmp_path: Path) -> None:
        writer = case.writer(tmp_path)
        start, stop = writer.plan.write_tasks()[0]
        frames = case.block().frames(slice(start, stop))
        encodings = []
        for _ in range(2):
            items = writer.encode(start, frames)
            encodings.append([(i.key, b"".join(i.parts), tuple(i.crcs)) for i in items])
        writer.abort()
        assert encodings[0] == encodings[1]
        assert_array_equal(frames.positions, case.block().positions[start:stop])

    def test_a_missing_piece_is_an_error(self, case: WritingCase, tmp_path: Path) -> None:
        writer = case.writer(tmp_path)
        self.write(case, writer, writer.plan.write_tasks()[1:])
        with pytest.raises(OutputError):
            writer.finish()
        writer.abort()

    def test_what_is_not_finished_is_no_trajectory(self, case: WritingCase, tmp_path: Path) -> None:
        writer = case.writer(tmp_path)
        writer.abort()
        writer.abort()
        with pytest.raises(OSError), case.layout_class(tmp_path / case.name) as layout:
            layout.read(0, layout.info.n_frames)
