"""Several files as one trajectory."""

from __future__ import annotations

import gc
import pickle
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import MDAnalysis
import numpy as np
import pytest
from MDAnalysisTests import datafiles
from suites.native_files import write_trr

import mdio
from mdio.converters.periodic import TransformedLayout
from mdio.core.errors import PlanError, SourceError, UnknownLayoutError
from mdio.core.files.in_flight import Prefetch
from mdio.layouts.base import Layout
from mdio.layouts.native.dcd import DCDLayout
from mdio.layouts.native.netcdf.layout import NCDFLayout
from mdio.layouts.native.trr import TRRLayout
from mdio.layouts.views.chain import MAX_OPEN, MAX_OPEN_OF_CHUNKS, ChainLayout, chain_joined
from mdio.layouts.views.joining import Joining
from mdio.layouts.views.opening import open_source
from mdio.layouts.views.view import ViewLayout
from mdio.testing.reading import (
    LayoutReadingTests,
    Oracle,
    ReadingCase,
    oracle_from_mdanalysis,
)


def joined(oracles: list[Oracle]) -> Oracle:
    columns = {}
    for name in ("positions", "box", "time", "step", "velocities", "forces"):
        arrays = [getattr(oracle, name) for oracle in oracles]
        if all(array is None for array in arrays):
            continue
        missing = [np.full(o.positions.shape, np.nan, np.float32) for o in oracles]
        columns[name] = np.concatenate(
            [m if a is None else a for a, m in zip(arrays, missing, strict=True)]
        )
    return Oracle(**columns, dt_ps=oracles[0].dt_ps)


class ChainCase(ReadingCase):
    """A case of several paths."""

    def open(self, **options) -> Layout:
        return ChainLayout(self.options["paths"], **options)


def case_of(paths: list[Path]) -> ChainCase:
    oracle = joined([oracle_from_mdanalysis(None, path) for path in paths])
    return ChainCase(ChainLayout, paths[0], oracle, {"paths": paths})


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    kinds = {"a": ["xv"] * 3, "b": ["xvf"] * 4, "c": ["x"], "d": ["xf"] * 5}
    return [write_trr(folder / f"{name}.trr", parts) for name, parts in kinds.items()]


class TestChainOfTRR(LayoutReadingTests):
    @pytest.fixture
    def case(self, files):
        return case_of(files)

    def test_the_bytes_are_recognised(self, case):
        assert not ChainLayout.sniff(case.path)

    def test_boundaries(self, case):
        super().test_boundaries(case)
        assert case.open().boundaries().tolist() == list(range(14))


class TestChainOfManyFormats(LayoutReadingTests):
    @pytest.fixture
    def case(self, adk):
        return case_of([adk["dcd"], adk["ncdf"], adk["trr"]])

    def test_the_bytes_are_recognised(self, case):
        assert [type(member) for member in case.open().sources] == [
            DCDLayout,
            NCDFLayout,
            TRRLayout,
        ]

    def test_every_frame_alone_backwards(self, case):
        with case.open() as layout:
            for frame in (293, 196, 195, 98, 97, 0):
                self.check(layout.read(frame, frame + 1), case.oracle, frame, frame + 1)


def test_other_numbers_of_atoms_are_named(files, tmp_path):
    other = write_trr(tmp_path / "other.trr", ["x"], n_atoms=9)
    sources = [TRRLayout(path) for path in (files[0], files[1], other)]
    with pytest.raises(SourceError, match=r"other\.trr: has 9 atoms, but .*a\.trr.* has 6"):
        ChainLayout(sources).info  # noqa: B018
    assert all(source._info is None for source in sources)


def test_few_members_are_open_at_once(files):
    many = [TRRLayout(files[number % 4]) for number in range(20)]
    with ChainLayout(many) as chain:
        chain.read(0, chain.info.n_frames)
        assert sum(member._info is not None for member in many) <= MAX_OPEN
    assert all(source._info is None for source in many)


def test_fewer_members_stored_in_chunks_are_open(files, tmp_path):
    """Each may keep a decoded chunk in memory."""
    for number in range(6):
        mdio.convert(files[0], tmp_path / f"{number}.zarr")
    many = [mdio.open(tmp_path / f"{number}.zarr") for number in range(6)]
    with ChainLayout(many) as chain:
        chain.read(0, chain.info.n_frames)
        assert sum(member._info is not None for member in many) <= MAX_OPEN_OF_CHUNKS


def test_the_interval_of_single_frames(files, tmp_path):
    one = write_trr(tmp_path / "one.trr", ["x"])
    assert ChainLayout([one, files[0]]).info.dt_ps == 0.0  # both begin at 0 ps
    assert ChainLayout([one]).info.dt_ps == 1.0


class _Described(TRRLayout):
    """Says what it is told to say of itself."""

    facts = replace(TRRLayout.facts, options=None)

    def _open(self):
        return super()._open().replace(**self.options)


def test_compression_and_precision_are_kept_if_all_share_them(files):
    xtc = {"compression": "xtc", "precision": 0.01}
    alike = ChainLayout([_Described(files[0], **xtc), _Described(files[1], **xtc)])
    assert (alike.info.compression, alike.info.precision) == ("xtc", 0.01)
    mixed = ChainLayout([_Described(files[0], **xtc), TRRLayout(files[1])])
    assert (mixed.info.compression, mixed.info.precision) == (None, None)


def test_open_source(files, tmp_path):
    assert isinstance(open_source(files[0]), TRRLayout)
    assert isinstance(open_source(str(files[0])), TRRLayout)
    assert isinstance(open_source([files[0]]), TRRLayout)
    chain = open_source(files[:2], overlap="keep-all", fields=("positions",))
    assert isinstance(chain, ChainLayout)
    assert chain.read(0, 1).velocities is None
    again = pickle.loads(pickle.dumps(chain))
    assert [one.path for one in again.sources] == [one.path for one in chain.sources]
    assert again.read(0, 1).velocities is None
    with pytest.raises(ValueError, match="no trajectory is given"):
        open_source([])
    with pytest.raises(SourceError, match="no such file"):
        open_source([files[0], tmp_path / "none.xtc"])
    with pytest.raises(SourceError, match="empty"):
        (tmp_path / "empty.dcd").write_bytes(b"")
        open_source(tmp_path / "empty.dcd")
    with pytest.raises(UnknownLayoutError):
        open_source(datafiles.PSF)


def test_a_truncated_member_is_named(files, tmp_path):
    bad = tmp_path / "bad.trr"
    bad.write_bytes(files[0].read_bytes()[:-4])
    with open_source([files[0], bad], overlap="keep-all") as layout:
        (lost,) = layout.info.lost
        assert lost.path == str(bad) and (lost.frame, lost.first) == (2, 3)
        assert "bad.trr: ends within frame 2" in " ".join(layout.notes)


class _Counted(TRRLayout):
    """Counts how often each file is opened."""

    opened: ClassVar[Counter[str]] = Counter()

    def _open(self):
        self.opened[str(self.path)] += 1
        return super()._open()


class _OfTwos(_Counted):
    """Begins a piece at every other frame."""

    def boundaries(self):
        return np.array([*range(0, self.info.n_frames, 2), self.info.n_frames])


@pytest.fixture
def counted(files, tmp_path):
    """Twelve files of other names: of 3, 4, 1 and 5 frames."""
    _Counted.opened.clear()
    paths = [tmp_path / f"{number}.trr" for number in range(12)]
    for number, path in enumerate(paths):
        path.write_bytes(files[number % 4].read_bytes())
    return paths


def times_opened():
    return sorted(_Counted.opened.values())


@pytest.mark.parametrize("kind", [_Counted, _OfTwos])
def test_members_are_opened_once_to_be_known(counted, kind, monkeypatch):
    monkeypatch.setattr("mdio.layouts.views.chain.MAX_OPEN", 4)
    with ChainLayout([kind(path) for path in counted]) as chain:
        assert chain.info.n_frames == 39
        for _ in range(3):
            edges = chain.boundaries().tolist()
        assert times_opened() == [1] * 12
        first = [0, 3, 7, 8, 13]
        every = [13 * turn + at for turn in range(3) for at in first[:-1]]
        if kind is _OfTwos:
            every = sorted({*every, *(13 * t + at for t in range(3) for at in (2, 5, 10, 12))})
        else:
            every = list(range(39))
        assert edges == [*every, 39]
        chain.read(0, 39)
        assert max(times_opened()) == 2


def test_an_analysis_opens_members_to_know_and_to_read_them(counted):
    """And the first once more, for the reference."""
    for workers in (None, 2):
        _Counted.opened.clear()
        with ChainLayout([_Counted(path) for path in counted]) as chain:
            executor = mdio.Serial() if workers is None else mdio.Processes(workers)
            mdio.analyze(chain, kernel=mdio.RMSD(), executor=executor)
        assert len(_Counted.opened) == 12
        # What workers open, they alone know.
        most = 2 * 12 + 1 if workers is None else 12 + 1
        assert sum(times_opened()) <= most


def test_atoms_of_other_names_or_in_another_order(tmp_path):
    atoms = MDAnalysis.Universe(datafiles.GRO).atoms[:9]
    chosen = {
        "a": atoms,
        "same": atoms,
        "reordered": atoms[::-1],
        "other": atoms.universe.atoms[50:59],
    }
    for number, (name, group) in enumerate(chosen.items()):
        with mdio.Writer(tmp_path / f"{name}.zarr", atoms=group) as writer:
            writer.write_block(np.zeros((2, 9, 3)), time=2.0 * number + np.arange(2))
    path, same, reordered, other = (tmp_path / f"{name}.zarr" for name in chosen)
    assert not mdio.open([path, same]).notes
    named = r"9 of the 9 atoms that are joined have other names in .*other\.zarr \(MET:N is "
    assert any(re.match(named, note) for note in mdio.open([path, other]).notes)
    for read in (lambda: mdio.open([path, reordered]).info, lambda: mdio.append(reordered, path)):
        with pytest.raises(PlanError, match=r"reordered\.zarr: has the 9 atoms that are joined in"):
            read()
    mdio.convert(path, tmp_path / "some.zarr", select=[3, 4, 5])
    with pytest.raises(PlanError, match=r"reordered\.zarr: has the 3 atoms that are joined in"):
        mdio.append(reordered, tmp_path / "some.zarr")


def test_files_without_steps_have_none_together(adk):
    """Nor has what is made of their frames: a DCD has the numbers of frames in their place."""
    with mdio.open([adk["dcd"], adk["dcd"]], overlap="keep-all") as chain:
        assert chain.stored_times[:2] == (True, False)
        transformed = TransformedLayout(chain.path, source=chain, top=adk["psf"], fit="translation")
        assert transformed.stored_times[:2] == (True, False)
    with mdio.open([adk["xtc"], adk["xtc"]], overlap="keep-all") as chain:
        assert chain.stored_times[:2] == (True, True)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda file: ViewLayout(file.path, source=file),
        lambda file: chain_joined([file], Joining(((0, 0, 5),))),
    ],
)
def test_a_view_that_goes_leaves_open_what_it_read(adk, wrap, monkeypatch):
    """It may go while another reads that, when the interpreter looks for what nobody holds."""
    stopped = []
    with mdio.open(adk["xtc"]) as file:
        view = wrap(file)
        view.prefetch([(0, 5)])
        view.read(0, 1)
        identity = id(view._prefetch)
        with monkeypatch.context() as patch:
            patch.setattr(Prefetch, "stop", lambda prefetch: stopped.append(prefetch))
            del view
            gc.collect()
        assert file._info is not None
        assert identity in map(id, stopped)  # its threads and descriptors would stay
        for prefetch in stopped:
            prefetch.stop()
        view = wrap(file)
        view.read(0, 1)
        view.close()
        assert file._info is None
