"""The arithmetic of chunks, pieces and stripes: invariants over all sizes, and known cases."""

import itertools
import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mdio
from mdio.core.errors import PlanError
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.plan import (
    JSON_NAMES,
    PARTS,
    WriteOptions,
    fit_parts,
    plan_arrays,
    plan_chunks,
    split_atoms,
)

KIB, MIB = 1 << 10, 1 << 20


def info(n_frames, n_atoms, velocities=False, forces=False):
    return TrajectoryInfo(
        "xtc", "a.xtc", n_frames, n_atoms, 1.0, 0.0, 1.0 * n_frames, velocities, forces
    )


SIZES = st.one_of(st.integers(1, 60), st.integers(1, 5000), st.integers(1, 12_000_000))
FRAMES = st.one_of(st.integers(1, 60), st.integers(1, 5000), st.integers(1, 1_000_000))
STRIPES = st.one_of(
    st.sampled_from([64 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB]), st.integers(1, 80 * MIB)
)


@st.composite
def plans(draw, **fixed):
    """A plan with what it was made of: (info, options, quantised, plan)."""
    n_atoms = draw(SIZES)
    what = info(draw(FRAMES), n_atoms, draw(st.booleans()), draw(st.booleans()))
    groups = draw(st.dictionaries(st.sampled_from("abc"), st.integers(1, n_atoms), max_size=2))
    options = WriteOptions(
        stripe_nbytes=draw(STRIPES),
        groups=groups,
        pattern=draw(st.sampled_from(["blocks", "selection", "frames", "timeseries"])),
        **{name: draw(values) for name, values in fixed.items()},
    )
    quantised = draw(st.booleans())
    return what, options, quantised, plan_arrays(what, options, quantised=quantised)


ASKED = {
    "chunk_frames": st.none() | st.integers(1, 40),
    "chunk_atoms": st.none() | st.integers(1, 10_000),
}


def stored_nbytes(plan, array, alignment=1):
    each = math.ceil(array.chunk_nbytes / alignment) * alignment
    return (
        each
        * math.ceil(plan.n_frames / array.chunk_frames)
        * math.ceil(array.n_atoms / array.chunk_atoms)
    )


@given(plans(**ASKED))
def test_pieces_are_whole_numbers_of_chunks_of_every_array(case):
    what, options, _, plan = case
    assert {(a.group, a.field) for a in plan.arrays} == {
        (group, name)
        for group in ("trajectory", *options.groups)
        for name in ("positions", "velocities", "forces")
        if name == "positions" or getattr(what, f"has_{name}")
    }
    full = plan.array("trajectory", "positions")
    for array in plan.arrays:
        assert plan.piece_frames % array.chunk_frames == 0
        multiple = array.chunk_frames // full.chunk_frames
        assert array.chunk_frames == multiple * full.chunk_frames
        assert multiple & (multiple - 1) == 0, "a power of two"
        assert 1 <= array.chunk_frames <= plan.n_frames
        assert 1 <= array.chunk_atoms <= array.n_atoms
    assert plan.piece_frames <= plan.n_frames


@given(plans(**ASKED))
def test_pieces_partition_the_frames(case):
    _, _, _, plan = case
    if plan.n_frames / plan.piece_frames > 20_000:
        plan = plan.replace(n_frames=plan.n_frames % (1000 * plan.piece_frames) + 1)
    pieces = plan.write_tasks()
    assert pieces[0][0] == 0
    assert pieces[-1][1] == plan.n_frames
    assert all(stop == start for (_, stop), (start, _) in itertools.pairwise(pieces))
    assert all(0 < stop - start <= plan.piece_frames for start, stop in pieces)


@given(plans())
def test_what_is_stored_is_at_most_15_percent_padding(case):
    what, _, _, plan = case
    for array in plan.arrays:
        data = 12 * what.n_frames * array.n_atoms
        # frames and atoms may both be cut; a group adds its own
        parts = 2 if array.chunk_atoms < array.n_atoms else 1
        assert data >= 0.85**parts * stored_nbytes(plan, array) * (1 - 1e-12)
    if plan.stripes.alignment_nbytes > 1:
        full = plan.array("trajectory", "positions")
        stored = stored_nbytes(plan, full, plan.stripes.alignment_nbytes)
        assert plan.stripes.padding == pytest.approx(1 - 12 * what.n_frames * what.n_atoms / stored)


@given(plans(**ASKED))
def test_alignment_only_where_padding_is_small(case):
    _, options, _, plan = case
    assert plan.stripes.alignment_nbytes in (1, options.stripe_nbytes)
    assert 0 <= plan.stripes.padding <= 0.15
    if plan.stripes.alignment_nbytes == 1:
        assert plan.stripes.padding == 0
    else:
        full = plan.array("trajectory", "positions")
        used = math.ceil(full.chunk_nbytes / options.stripe_nbytes) * options.stripe_nbytes
        assert 1 - full.chunk_nbytes / used <= 0.15


@given(plans())
def test_pieces_fit_in_memory(case):
    what, options, quantised, plan = case
    n_fields = 1 + what.has_velocities + what.has_forces
    few = (2 if quantised else 1) * what.frame_nbytes
    assert plan.piece_frames * what.frame_nbytes <= max(
        64 * MIB, few, n_fields * options.stripe_nbytes
    )


@given(plans(chunk_atoms=st.integers(1, 10_000)))
def test_pieces_fit_in_memory_whatever_atoms_a_chunk_has(case):
    what, _, quantised, plan = case
    few = (2 if quantised else 1) * what.frame_nbytes
    assert plan.piece_frames * what.frame_nbytes <= max(64 * MIB, few)


@given(plans())
def test_enough_pieces_for_the_workers(case):
    """A trajectory that is large beside its chunks is cut in eight pieces or more."""
    _, _, _, plan = case
    chunks = math.ceil(plan.n_frames / plan.arrays[0].chunk_frames)
    total = 12 * plan.n_frames * plan.n_atoms
    if total >= 64 * MIB and chunks >= 8:
        assert len(range(0, plan.n_frames, plan.piece_frames)) >= 8


@given(plans(**ASKED))
def test_bytes_of_the_output(case):
    _, _, _, plan = case
    assert plan.nbytes == sum(stored_nbytes(plan, array) for array in plan.arrays)


@given(st.integers(1, 200 * MIB), FRAMES, STRIPES)
def test_chunks_fill_their_stripes_or_are_not_aligned(frame_nbytes, n_frames, stripe_nbytes):
    chunk_frames, padding = plan_chunks(frame_nbytes, n_frames, stripe_nbytes)
    assert 1 <= chunk_frames <= n_frames
    assert 0 <= padding <= 0.15
    if chunk_frames > 1:
        assert chunk_frames * frame_nbytes <= max(16 * MIB, stripe_nbytes)
    n_chunks = math.ceil(n_frames / chunk_frames)
    used = math.ceil(chunk_frames * frame_nbytes / stripe_nbytes) * stripe_nbytes
    if padding > 0:
        assert padding == pytest.approx(1 - n_frames * frame_nbytes / (n_chunks * used))
    assert n_chunks * chunk_frames * 0.85 <= n_frames


@given(st.integers(1, 10**7), st.integers(1, 10**7))
def test_parts_are_nearly_equal(wanted, total):
    length = fit_parts(wanted, total)
    assert 1 <= length <= min(wanted, total)
    n_parts = math.ceil(total / length)
    assert n_parts * length * 0.85 <= total
    if wanted >= 7:
        assert length >= min(wanted, total) / 2, "not much shorter than asked"


@pytest.mark.parametrize(
    ("wanted", "total", "length"),
    [(26, 27, 14), (26, 26, 26), (99, 26, 26), (2, 5, 1), (3, 7, 2), (64, 1000, 63)],
)
def test_parts(wanted, total, length):
    """Two parts of 14 for 27, not 26 and 1; three of 2 would waste a sixth of 5."""
    assert fit_parts(wanted, total) == length


@given(st.integers(1_500_000, 10**9), STRIPES)
def test_large_frames_are_cut_into_chunks_of_a_few_mib(n_atoms, stripe_nbytes):
    atoms = split_atoms(n_atoms, stripe_nbytes)
    target = math.ceil(4 * MIB / stripe_nbytes) * stripe_nbytes
    if 12 * n_atoms > target:
        assert target / 3 <= 12 * atoms <= 3 * target


def test_a_protein_with_the_default_stripes():
    plan = plan_arrays(info(4187, 3341), WriteOptions(groups={"ca": 214}), quantised=False)
    full, ca = plan.arrays
    assert (full.chunk_frames, full.chunk_atoms) == (26, 3341)  # 1,042,392 of 1,048,576 bytes
    assert full.chunk_nbytes == 1_042_392
    assert plan.stripes.alignment_nbytes == MIB
    assert plan.stripes.padding < 0.02
    assert (ca.chunk_frames, plan.piece_frames) == (208, 416)


def test_a_membrane_with_4_mib_stripes():
    options = WriteOptions(stripe_nbytes=4 * MIB, stripe_count=8)
    plan = plan_arrays(info(90_100, 111_815), options, quantised=False)
    assert plan.arrays[0].chunk_frames == 3  # 4,025,340 of 4,194,304 bytes
    assert plan.stripes.alignment_nbytes == 4 * MIB
    assert plan.stripes.padding == pytest.approx(0.0403, abs=1e-4)


def test_ten_million_atoms():
    plan = plan_arrays(info(200, 10_000_000), WriteOptions(), quantised=False)
    array = plan.arrays[0]
    assert array.chunk_frames == plan.piece_frames == 1
    assert 3.5 * MIB < array.chunk_nbytes <= 4 * MIB
    assert plan.stripes.padding < 0.02


def test_a_group_of_a_huge_system_is_cut_evenly():
    options = WriteOptions(groups={"protein": 350_000})
    plan = plan_arrays(info(200, 10_000_000), options, quantised=False)
    assert plan.arrays[1].chunk_atoms == 175_000


def test_a_hundred_thousand_atoms_need_little_memory():
    for quantised in (False, True):
        plan = plan_arrays(info(10_000, 100_000), WriteOptions(), quantised=quantised)
        assert plan.piece_frames * 12 * 100_000 <= 33 * MIB
        assert plan.arrays[0].chunk_nbytes <= 8 * MIB


@pytest.mark.parametrize("n_frames", [1, 2, 3, 5, 11, 27, 28, 53])
def test_small_trajectories_are_not_padded(n_frames):
    """27 frames of which 26 fill a stripe would take twice their size as two whole chunks."""
    plan = plan_arrays(info(n_frames, 3341), WriteOptions(), quantised=False)
    assert plan.nbytes <= n_frames * 12 * 3341 / 0.85


def test_single_frames_want_small_chunks():
    """Reading one frame fetches its chunk: 64 KiB hold one of 40 kB, not 26 of them."""
    plan = plan_arrays(info(4187, 3341), WriteOptions(pattern="frames"), quantised=False)
    assert plan.arrays[0].chunk_frames == 1
    assert plan.stripes.alignment_nbytes == 1
    tiny = plan_arrays(info(4187, 22), WriteOptions(pattern="frames"), quantised=False)
    assert tiny.arrays[0].chunk_nbytes <= 64 * KIB


def test_chunks_in_which_single_frames_are_sought_are_short():
    """A frame takes reading and verifying its chunk; few atoms of all frames take fewer of them."""
    for pattern, frames in (("blocks", 16), ("selection", 32)):
        options = WriteOptions(compression="rigid-seek", pattern=pattern)
        plan = plan_arrays(info(4187, 47_681), options, quantised=True)
        assert plan.arrays[0].chunk_frames >= frames
        assert (plan.arrays[0].chunk_frames == frames) == (pattern == "blocks")


def test_a_selection_wants_few_atoms_of_many_frames():
    """The first 10,000 of 100,000 atoms: about a tenth of the bytes, not all."""
    what = info(10_000, 100_000)

    def fetched(plan):
        array = plan.arrays[0]
        return math.ceil(10_000 / array.chunk_atoms) * array.chunk_atoms / array.n_atoms

    blocks = plan_arrays(what, WriteOptions(), quantised=False)
    selection = plan_arrays(what, WriteOptions(pattern="selection"), quantised=False)
    assert fetched(blocks) == 1
    assert fetched(selection) < 0.2
    assert 0.9 * MIB < selection.arrays[0].chunk_nbytes < 1.1 * MIB
    assert selection.stripes.alignment_nbytes == MIB


@pytest.mark.parametrize("pattern", ["blocks", "selection", "frames", "timeseries"])
def test_what_is_asked_wins_over_the_pattern(pattern):
    options = WriteOptions(chunk_frames=7, chunk_atoms=100, pattern=pattern)
    plan = plan_arrays(info(4187, 3341), options, quantised=False)
    assert (plan.arrays[0].chunk_frames, plan.arrays[0].chunk_atoms) == (7, 100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk_frames": 0}, "--chunk-frames is 0"),
        ({"chunk_atoms": -3}, "--chunk-atoms is -3"),
        ({"stripe_nbytes": 0}, "--stripe-size is 0"),
        ({"stripe_count": 0}, "--stripe-count is 0"),
        ({"stripe_count": -2}, "--stripe-count is -2"),
        ({"chunk_frames": 1_000_000, "chunk_atoms": 3341}, "smaller --chunk-frames"),
    ],
)
def test_sizes_that_make_no_sense(options, message):
    with pytest.raises(PlanError, match=message):
        plan_arrays(info(2_000_000, 3341), WriteOptions(**options), quantised=False)


@pytest.mark.parametrize(("n_frames", "n_atoms"), [(0, 5), (5, 0)])
def test_nothing_to_write(n_frames, n_atoms):
    with pytest.raises(PlanError, match="nothing to write"):
        plan_arrays(info(n_frames, n_atoms), WriteOptions(), quantised=False)


def test_all_targets_may_be_asked_for():
    assert (
        plan_arrays(info(5, 5), WriteOptions(stripe_count=-1), quantised=False).stripes.stripe_count
        == -1
    )


def test_json_of_a_plan():
    plan = plan_arrays(info(4187, 3341), WriteOptions(groups={"ca": 214}), quantised=False)
    values = json.loads(json.dumps(plan.to_json()))
    assert values["n_pieces"] == 11
    assert "source_density" in values  # as programs know it that read ``--json``
    assert values["arrays"][1]["chunk_nbytes"] == plan.arrays[1].chunk_nbytes
    names = asdict(plan).keys() - PARTS.keys() - JSON_NAMES.keys()
    assert values.keys() >= names | asdict(plan.stripes).keys()


def test_sizes_may_be_numbers_of_numpy(adk, tmp_path):
    out = mdio.convert(
        adk["dcd"], tmp_path / "a.zarr", stop=4, storage=mdio.Storage(chunk_frames=np.int64(2))
    )
    assert out.plan.arrays[0].chunk_frames == 2
