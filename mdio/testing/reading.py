"""Tests of every readable layout; each layout's tests subclass them and provide a case.

::

    class TestDCD(LayoutReadingTests):
        @pytest.fixture
        def case(self):
            return ReadingCase(DCDLayout, Path(DCD), oracle_from_mdanalysis(PSF, DCD))

The oracle is made without mdio; expensive ones belong in a fixture of the module. Layouts that
round positions on purpose override `check_positions`.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from mdio.core.errors import CorruptLayoutError, FrameRangeError
from mdio.core.frames import FrameBlock
from mdio.layouts.backend import read_encoded_chunks
from mdio.layouts.base import Layout
from mdio.testing.blocks import Floats, Oracle, oracle_from_mdanalysis

__all__ = ["LayoutReadingTests", "Oracle", "ReadingCase", "oracle_from_mdanalysis"]

HYPOTHESIS = settings(
    max_examples=30,
    deadline=None,
    derandomize=True,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
        HealthCheck.too_slow,
    ],
)


@dataclass(frozen=True)
class ReadingCase:
    """One trajectory on disk and its contents."""

    layout_class: type[Layout]
    path: Path
    oracle: Oracle
    options: Mapping[str, Any] = field(default_factory=dict)

    def open(self, **options: Any) -> Layout:
        """Return a new layout over the path."""
        return self.layout_class(self.path, **{**self.options, **options})


def check_form(array: NDArray[Any], shape: tuple[int, ...], dtype: type) -> None:
    """Compare shape and type of an array."""
    assert array.shape == shape
    assert array.dtype == dtype


def _read_in_child(layout: Layout, queue: Any) -> None:
    block = layout.read(0, layout.info.n_frames)
    queue.put((block.positions.tobytes(), block.time.tobytes()))


class LayoutReadingTests:
    """The contract of `mdio.layouts.base.Layout`, for reading."""

    def check_positions(self, actual: Floats, expected: Floats) -> None:
        """Compare positions; bit for bit by default."""
        assert_array_equal(actual, expected)

    def check(
        self,
        block: FrameBlock,
        oracle: Oracle,
        start: int,
        stop: int,
        atoms: Any = None,
        fields: tuple[str, ...] = ("positions", "velocities", "forces"),
    ) -> None:
        """Compare a block with frames ``start:stop`` of the oracle."""
        indices = slice(None) if atoms is None else np.asarray(atoms, np.int64)
        n_atoms = oracle.n_atoms if atoms is None else len(atoms)
        shape = (stop - start, n_atoms, 3)
        check_form(block.positions, shape, np.float32)
        check_form(block.box, (stop - start, 6), np.float32)
        check_form(block.time, (stop - start,), np.float64)
        check_form(block.step, (stop - start,), np.int64)
        self.check_positions(block.positions, oracle.positions[start:stop][:, indices])
        assert_array_equal(block.box, oracle.box[start:stop])
        assert_array_equal(block.time, oracle.time[start:stop])
        assert_array_equal(block.step, oracle.step[start:stop])
        for name in ("velocities", "forces"):
            expected = getattr(oracle, name)
            actual = getattr(block, name)
            if expected is None or name not in fields:
                assert actual is None
            else:
                check_form(actual, shape, np.float32)
                assert_array_equal(actual, expected[start:stop][:, indices])

    def test_info(self, case: ReadingCase) -> None:
        with case.open() as layout:
            info = layout.info
        oracle = case.oracle
        assert (info.n_frames, info.n_atoms) == (oracle.n_frames, oracle.n_atoms)
        assert info.has_velocities == (oracle.velocities is not None)
        assert info.has_forces == (oracle.forces is not None)
        assert info.has_box == bool(oracle.box[0].any())
        assert (info.time_first_ps, info.time_last_ps) == (oracle.time[0], oracle.time[-1])
        if oracle.dt_ps is not None:
            assert info.dt_ps == oracle.dt_ps
        assert info.nbytes > 0
        assert info.layout == case.layout_class.name
        assert info.path == str(case.path)

    def test_the_bytes_are_recognised(self, case: ReadingCase) -> None:
        assert case.layout_class.sniff(case.path)

    def test_all_frames(self, case: ReadingCase) -> None:
        with case.open() as layout:
            self.check(layout.read(0, case.oracle.n_frames), case.oracle, 0, case.oracle.n_frames)

    def test_every_frame_alone_backwards(self, case: ReadingCase) -> None:
        with case.open() as layout:
            for frame in reversed(range(case.oracle.n_frames)):
                self.check(layout.read(frame, frame + 1), case.oracle, frame, frame + 1)

    def test_numbers_of_frames_may_be_those_of_numpy(self, case: ReadingCase) -> None:
        last = np.int64(case.oracle.n_frames - 1)
        with case.open() as layout:
            block = layout.read(last, last + 1)  # type: ignore[arg-type]
        self.check(block, case.oracle, int(last), int(last) + 1)

    @pytest.mark.parametrize("length", [2, 3, 7])
    def test_runs(self, case: ReadingCase, length: int) -> None:
        n_frames = case.oracle.n_frames
        with case.open() as layout:
            for start in range(0, n_frames, length):
                stop = min(start + length, n_frames)
                self.check(layout.read(start, stop), case.oracle, start, stop)

    def test_no_frames(self, case: ReadingCase) -> None:
        with case.open() as layout:
            for frame in (0, case.oracle.n_frames):
                self.check(layout.read(frame, frame), case.oracle, frame, frame)

    @pytest.mark.parametrize("choice", ["first", "last", "prefix", "mixed", "all", "none"])
    def test_atoms(self, case: ReadingCase, choice: str) -> None:
        n_atoms, n_frames = case.oracle.n_atoms, case.oracle.n_frames
        atoms = {
            "first": [0],
            "last": [n_atoms - 1],
            "prefix": list(range(max(1, n_atoms // 3))),
            "mixed": [n_atoms - 1, 0, n_atoms // 2, 0, n_atoms // 2],
            "all": list(range(n_atoms)),
            "none": [],
        }[choice]
        with case.open() as layout:
            block = layout.read(0, n_frames, atoms=np.array(atoms, np.int64))
        self.check(block, case.oracle, 0, n_frames, atoms)

    def test_a_block_is_filled(self, case: ReadingCase) -> None:
        oracle, stop = case.oracle, min(3, case.oracle.n_frames)
        out = FrameBlock.empty(
            stop,
            oracle.n_atoms,
            velocities=oracle.velocities is not None,
            forces=oracle.forces is not None,
        )
        for array in out.present().values():
            array.fill(-7)
        columns: tuple[NDArray[Any], ...] = (out.box, out.time, out.step)
        for column in columns:
            column.fill(-7)
        with case.open() as layout:
            assert layout.read(0, stop, out=out) is out
        self.check(out, oracle, 0, stop)

    def test_a_block_for_positions_only_is_filled(self, case: ReadingCase) -> None:
        out = FrameBlock.empty(1, 1)
        with case.open() as layout:
            layout.read(0, 1, atoms=[0], out=out)
        self.check(out, case.oracle, 0, 1, [0], fields=("positions",))

    def test_a_block_of_another_shape_is_refused(self, case: ReadingCase) -> None:
        with case.open() as layout, pytest.raises(ValueError, match="out holds"):
            layout.read(0, 1, out=FrameBlock.empty(2, case.oracle.n_atoms))

    def test_only_the_asked_fields_are_read(self, case: ReadingCase) -> None:
        with case.open(fields=("positions",)) as layout:
            self.check(layout.read(0, 1), case.oracle, 0, 1, fields=("positions",))

    def test_frames_outside(self, case: ReadingCase) -> None:
        n_frames = case.oracle.n_frames
        with case.open() as layout:
            for start, stop in ((-1, 1), (0, n_frames + 1), (1, 0), (n_frames + 1, n_frames + 1)):
                with pytest.raises(FrameRangeError, match=r"frames .* asked for"):
                    layout.read(start, stop)

    def test_atoms_outside(self, case: ReadingCase) -> None:
        with case.open() as layout:
            for atoms in ([-1], [case.oracle.n_atoms], [[0]]):
                with pytest.raises(FrameRangeError, match="atom indices"):
                    layout.read(0, 1, atoms=atoms)

    def test_pickling(self, case: ReadingCase) -> None:
        stop = min(2, case.oracle.n_frames)
        with case.open() as layout:
            for state in ("before", "after"):
                with pickle.loads(pickle.dumps(layout)) as other:
                    self.check(other.read(0, stop), case.oracle, 0, stop)
                if state == "before":
                    layout.read(0, stop)

    def test_reading_after_close(self, case: ReadingCase) -> None:
        layout = case.open()
        layout.close()
        for _ in range(2):
            self.check(layout.read(0, 1), case.oracle, 0, 1)
            layout.close()
            layout.close()

    def test_whatever_is_asked_first(self, case: ReadingCase) -> None:
        """Any method may be called first: workers get layouts whose files are not open."""
        n_frames = case.oracle.n_frames

        def call(name: str, *arguments: Any) -> None:
            with pickle.loads(pickle.dumps(case.open())) as layout:
                for _ in range(2):
                    result = getattr(layout, name)(*arguments)
                    if result is not None:
                        list(result)
                    layout.close()

        call("boundaries")
        call("byte_ranges", 0, n_frames, None)
        call("prefetch", [(0, n_frames)])
        call("prefetch", ())
        call("file_layouts")
        call("units")
        with case.open() as layout:
            edges = layout.boundaries()
            is_output = layout.manifest is not None
        if is_output:
            # Some outputs consist of files that are checked by themselves.
            with suppress(NotImplementedError, CorruptLayoutError), case.open() as layout:
                read_encoded_chunks(layout, int(edges[0]), int(edges[1]))

    def test_reading_in_a_forked_process(self, case: ReadingCase) -> None:
        with case.open() as layout:
            layout.read(0, 1)
            context = multiprocessing.get_context("fork")
            queue = context.Queue()
            child = context.Process(target=_read_in_child, args=(layout, queue))
            child.start()
            positions, time = queue.get(timeout=60)
            child.join()
            block = layout.read(0, case.oracle.n_frames)
        assert (positions, time) == (block.positions.tobytes(), block.time.tobytes())

    def test_boundaries(self, case: ReadingCase) -> None:
        with case.open() as layout:
            edges = layout.boundaries()
        assert edges.dtype == np.int64
        assert (edges[0], edges[-1]) == (0, case.oracle.n_frames)
        assert (np.diff(edges) > 0).all()

    @HYPOTHESIS
    @given(data=st.data())
    def test_any_run_of_any_atoms(self, case: ReadingCase, data: st.DataObject) -> None:
        oracle = case.oracle
        start = data.draw(st.integers(0, oracle.n_frames), label="start")
        stop = data.draw(st.integers(start, oracle.n_frames), label="stop")
        atom = st.integers(0, oracle.n_atoms - 1)
        atoms = data.draw(st.none() | st.lists(atom, max_size=12), label="atoms")
        with case.open() as layout:
            self.check(layout.read(start, stop, atoms=atoms), oracle, start, stop, atoms)
