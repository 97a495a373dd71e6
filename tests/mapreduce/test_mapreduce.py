"""The same table whatever the executor, the blocks and the memory; beside a loop of MDAnalysis."""

import warnings

import MDAnalysis as mda
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mapreduce import programs
from mapreduce.programs import Windows
from MDAnalysisTests.datafiles import TRR_xvf

import mdio
from mdio.core.errors import BlockError
from mdio.core.frames import FIELDS


def oracle(adk, program, frames=None):
    """Return {key: row} by a loop over frames and a dict of lists."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        u = mda.Universe(adk["psf"], adk["dcd"])
    atoms = u.select_atoms("name CA")
    found = {}
    for number in range(98) if frames is None else frames:
        ts = u.trajectory[number]
        keys, _, values = program.map(_Block(atoms.positions[None]))
        for row, key in enumerate(keys.tolist()):
            place, atom = values["place"][row], values["atom"][row]
            found.setdefault(key, []).append((number, ts.time, place, atom))
    return {
        key: program.reduce(
            key,
            *(np.array(column) for column in zip(*((p[0], p[1]) for p in pairs), strict=True)),
            {"place": np.array([p[2] for p in pairs]), "atom": np.array([p[3] for p in pairs])},
        )
        for key, pairs in found.items()
    }


class _Block:
    def __init__(self, positions):
        self.positions = positions


def check(result, expected):
    assert result.keys.tolist() == sorted(expected)
    for row, key in enumerate(result.keys.tolist()):
        for name, value in expected[key].items():
            np.testing.assert_array_equal(result.columns[name][row], value)


def same(one, other):
    np.testing.assert_array_equal(one.keys, other.keys)
    assert one.columns.keys() == other.columns.keys()
    for name, column in one.columns.items():
        np.testing.assert_array_equal(column, other.columns[name])
        assert column.dtype == other.columns[name].dtype
    for name in ("frame", "time", "n_pairs"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def run(adk, program, **more):
    return mdio.map_reduce(adk["dcd"], top=adk["psf"], map=program.map, **more)


@pytest.mark.parametrize("keys", ["atom", "text", "few", "one", "float"])
@pytest.mark.parametrize("order", ["frames", "atoms"])
def test_as_a_loop_over_frames(adk, keys, order):
    program = Windows(keys, order)
    check(run(adk, program), oracle(adk, program))


@pytest.mark.parametrize("keys", ["atom", "text", "few", "one"])
@pytest.mark.parametrize("memory", [1, 5_000, 40_000, 1 << 30])
@pytest.mark.parametrize("n_workers", [None, 2, 3])
def test_the_same_however_it_is_done(adk, keys, memory, n_workers, tmp_path):
    program = Windows(keys)
    found = run(
        adk,
        program,
        memory=memory,
        workers=n_workers,
        blocks_per_worker=5 if n_workers is None else 3,
        local_dir=tmp_path,
    )
    same(found, run(adk, program))
    assert found.nbytes_shuffled == found.n_pairs.sum() * (
        found.nbytes_shuffled // found.n_pairs.sum()
    )
    assert (found.nbytes_on_disk > 0) == (memory <= 40_000 or n_workers is not None)
    assert not list(tmp_path.iterdir())


def test_prompts_and_notebooks_show_the_table(adk):
    found = run(adk, Windows("atom"))
    assert repr(found).startswith(f"<MapReduceResult: {len(found.keys):,} keys, columns ")
    assert len(repr(found)) < 200
    shown = found._repr_html_()
    assert shown.count("<tr>") == 1 + 10
    assert f"<th>key</th><th>{next(iter(found.columns))}" in shown


def test_frame_by_frame(adk):
    program = Windows()
    found = run(adk, program)
    by_frame = mdio.map_reduce(
        adk["dcd"],
        top=adk["psf"],
        select="name CA",
        map=programs.one_by_one,
        reduce=program.reduce,
        per_frame=True,
        workers=2,
    )
    same(by_frame, found)


@settings(max_examples=25, suppress_health_check=[*HealthCheck])
@given(
    data=st.data(),
    memory=st.integers(1, 3000),
    blocks=st.integers(1, 40),
    keys=st.sampled_from(
        [st.integers(-3, 3), st.integers(), st.text(max_size=3), st.floats(-1, 1)]
    ),
)
def test_any_pairs(adk, tmp_path, data, memory, blocks, keys):
    """Random pairs, in a random order within each frame: all come, each once, in order."""
    frame_pairs = data.draw(
        st.lists(
            st.lists(keys.filter(lambda k: k == k and _fits(k)), max_size=12),
            min_size=25,
            max_size=25,
        )
    )
    numbers = [
        np.random.default_rng(n).integers(0, 1 << 40, len(k)) for n, k in enumerate(frame_pairs)
    ]
    expected = {}
    for frame, (pairs, values) in enumerate(zip(frame_pairs, numbers, strict=True)):
        for key, value in zip(pairs, values.tolist(), strict=True):
            expected.setdefault(key, []).append((frame, value))

    def give(block):
        frame = round(float(block.time[0] - first) / dt)
        yield from zip(frame_pairs[frame], numbers[frame], strict=True)

    seen = {}

    def keep(key, frame, time, values):
        seen[key] = list(zip(frame.tolist(), values["value"].tolist(), strict=True))
        return {"n": len(frame)}

    with mdio.open(adk["dcd"]) as layout:
        first, dt = layout.info.time_first_ps, layout.info.dt_ps
    result = mdio.map_reduce(
        adk["dcd"],
        map=give,
        reduce=keep,
        frames=slice(25),
        per_frame=True,
        memory=memory,
        blocks_per_worker=blocks,
        local_dir=tmp_path,
    )
    assert seen == expected
    assert result.keys.tolist() == sorted(expected)


def _fits(key):
    if isinstance(key, int):
        return -(2**63) <= key < 2**63
    return not isinstance(key, str) or not key.endswith("\0")


@pytest.mark.parametrize(
    ("frames", "numbers"),
    [
        (slice(10, 90, 7), range(10, 90, 7)),
        (slice(None, None, 50), range(0, 98, 50)),
        ([5, 3, 97, -2, 40], [3, 5, 40, 96, 97]),
        (np.array([1, 2, 4]), [1, 2, 4]),
        (lambda time: np.arange(98) % 13 == 4, range(4, 98, 13)),
        (lambda time: (time > time[7]) & (time < time[11]), [8, 9, 10]),
        ("times", [2, 3, 30]),
        ("from to", range(20, 41)),
    ],
)
@pytest.mark.parametrize("n_workers", [None, 2])
def test_frames(adk, frames, numbers, n_workers):
    with mdio.open(adk["dcd"]) as layout:
        time = layout.read(0, 98, atoms=[]).time
    if isinstance(frames, str) and frames == "times":
        frames = [float(time[n]) for n in (30, 2, 3)]
    elif isinstance(frames, str):
        frames = slice(float(time[20]), float(time[40]))
    program = Windows()
    found = run(adk, program, frames=frames, workers=n_workers)
    assert found.frame.tolist() == list(numbers)
    np.testing.assert_array_equal(found.time, time[list(numbers)])
    check(found, oracle(adk, program, numbers))
    assert not any("frames" in note for note in found.notes)
    program.frames = slice(2)
    found = run(adk, program, frames=slice(3))
    assert found.n_frames == 3 and "in place of those of Windows.frames" in found.notes[0]
    assert run(adk, program).n_frames == 2


def test_replicas_are_reduced_apart(adk):
    """Also where blocks are cut elsewhere, and one of them is in another format."""
    program = Windows("few")
    both = {"b": adk["dcd"], "a": [adk["dcd"]], "x": adk["xtc"]}
    for more in ({}, {"workers": 2, "memory": 9000}):
        found = mdio.map_reduce(
            both, top=adk["psf"], map=program.map, frames=slice(0, 50, 3), **more
        )
        assert found.keys.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert found.label.tolist() == ["b", "a", "x"] * 3
        alone = run(adk, program, frames=slice(0, 50, 3))
        for label in "ab":
            rows = found.label == label
            for name, column in alone.columns.items():
                np.testing.assert_array_equal(found.columns[name][rows], column)
        assert found.frame.tolist() == 3 * list(range(0, 50, 3))
        assert found.columns["last_ps"][found.label == "x"].tolist() == [5 + 2 * 48] * 3


@pytest.mark.parametrize("combine", ["sum", programs.distinct])
def test_a_combiner_shrinks_what_travels(adk, combine):
    plain = mdio.map_reduce(adk["dcd"], map=programs.bins, reduce=programs.total)
    small = mdio.map_reduce(
        adk["dcd"], map=programs.bins, reduce=programs.total, combine=combine, workers=2
    )
    same(plain, small)
    assert plain.columns["n"].sum() == 98 * 3341
    assert small.nbytes_shuffled < plain.nbytes_shuffled / 100


@pytest.mark.parametrize("firsts", [[0, 0], [-1, 1], [0, 10**9]])
def test_a_combiner_that_names_no_rows(adk, firsts):
    def combine(keys, values):
        return firsts, {"n": np.ones(2)}

    with pytest.raises(BlockError, match="first rows that do not ascend or do not exist"):
        mdio.map_reduce(adk["dcd"], map=programs.bins, reduce=programs.total, combine=combine)


class _Speeds:
    fields = ("velocities", "forces")

    def map(self, block):
        names = [name for name in FIELDS if getattr(block, name) is not None]
        return names, [0] * len(names), {"n": np.ones(len(names))}


@pytest.mark.parametrize("fields", [None, "velocities", ("forces",)])
def test_fields_that_are_asked_for_are_more_than_those_of_the_class(fields):
    found = mdio.map_reduce(TRR_xvf, map=_Speeds().map, reduce=programs.total, fields=fields)
    assert {*found.keys.tolist()} == {*FIELDS}


class Static:
    """A map that does not know its object."""

    select = "name CA"

    @staticmethod
    def map(block):
        counts = np.full(block.n_frames, block.n_atoms)
        return np.zeros(block.n_frames, int), np.arange(block.n_frames), {"n": counts}

    def reduce(self, key, frame, time, values):
        return {"n": values["n"].max()}


class Assigned(Static):
    def __init__(self):
        self.map = lambda block: Static.map(block)


@pytest.mark.parametrize("program", [Static, Assigned])
def test_a_map_that_is_no_method_belongs_to_its_object(adk, program):
    result = mdio.map_reduce(adk["dcd"], top=adk["psf"], map=program())
    assert result.columns["n"].tolist() == [214]


def test_nothing_at_all(adk):
    found = mdio.map_reduce(adk["dcd"], map=programs.nothing, reduce=programs.total, workers=2)
    assert len(found.keys) == 0 and found.columns == {} and found.n_frames == 98


def test_times_of_a_list_may_be_rounded(tmp_path):
    """Far from 0 in a file of float32, by more than a hundredth of the time between frames."""
    with mdio.Writer(tmp_path / "a.xtc", 1) as writer:
        writer.write_block(np.zeros((9, 1, 3)), time=100000 + 0.1 * np.arange(9))
    found = mdio.map_reduce(
        tmp_path / "a.xtc",
        map=lambda block: ([0] * block.n_frames, np.arange(block.n_frames), {}),
        reduce=lambda key, frame, time, values: {"n": len(frame)},
        frames=[100000.3, 100000.7],
    )
    assert found.frame.tolist() == [3, 7]


def test_a_program_is_told_all_frames_before_it_reduces(adk):
    class Told(Windows):
        def begin(self, frame, time):
            self.frames = frame, time

        def reduce(self, key, frame, time, values):
            return {"n": len(self.frames[0]), "end": self.frames[1][-1]}

    program = Told("few")
    found = mdio.map_reduce(
        {"a": adk["dcd"], "b": adk["xtc"]}, top=adk["psf"], map=program, frames=slice(9)
    )
    assert found.columns["n"].tolist() == [9] * 6
    assert found.columns["end"][1::2].tolist() == [5 + 2 * 8] * 3
