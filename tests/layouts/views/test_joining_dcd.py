"""DCD files of restarts, with headers as NAMD and OpenMM write them."""

import struct

import MDAnalysis as mda
import numpy as np
import pytest

import mdio
from mdio.core.errors import SourceError

N_ATOMS = 5
FS_PER_AKMA = 48.88821


def namd(path, mark, first, last, every, dt_fs=2.0):
    """Write frames of the steps that follow `first`: istart is the first one's, in units of nsavc.

    NPRIV, NSAVC and NSTEP are those of Output.C; the cell's angles are cosines.
    """
    istart = every * ((first + every) // every)
    nstep = every * (last // every)
    n_frames = (nstep - istart) // every + 1
    words = [n_frames, istart, every, nstep, 0, 0, 0, 0, 0]
    titles = [b"Created by NAMD", b"REMARKS of a restart"]
    cell = [50.0, 0.0, 50.0, 0.0, 0.0, 50.0]
    return _write(path, words, dt_fs / FS_PER_AKMA, titles, n_frames, mark, cell)


def openmm(path, mark, first, last, every, dt_fs=2.0):
    """Write frames as app.DCDFile does: istart is the first one's step; angles in degrees."""
    istart = first + every
    n_frames = (last - first) // every
    words = [n_frames, istart, every, istart + n_frames * every, 0, 0, 0, 0, 0]
    titles = [b"Created by OpenMM", b"Created Sun Jan  1 00:00:00 2023"]
    cell = [50.0, 90.0, 50.0, 90.0, 90.0, 50.0]
    return _write(path, words, dt_fs / 1000 / 0.04888821, titles, n_frames, mark, cell)


def _write(path, words, delta, titles, n_frames, mark, cell):
    text = b"".join(title.ljust(80) for title in titles)
    record = struct.pack("<4s9if10i", b"CORD", *words, delta, 1, *[0] * 8, 24)
    data = [record, struct.pack("<i", len(titles)) + text, struct.pack("<i", N_ATOMS)]
    _, istart, every, *_ = words
    for frame in range(n_frames):
        data.append(struct.pack("<6d", *cell))
        planes = (mark, istart + frame * every, 0.0)
        data += [np.full(N_ATOMS, number, "<f4").tobytes() for number in planes]
    marked = (struct.pack("<i", len(one)) + one + struct.pack("<i", len(one)) for one in data)
    path.write_bytes(b"".join(marked))
    return path


def seen(paths, **options):
    """Return which file each frame is of, and its step; checks the times."""
    with mdio.open([str(path) for path in paths], **options) as layout:
        block = layout.read(0, layout.info.n_frames)
        notes = layout.notes
    steps = block.positions[:, 0, 1]
    np.testing.assert_allclose(block.time, 0.002 * steps, rtol=1e-6)
    return list(zip(block.positions[:, 0, 0].tolist(), steps.tolist(), strict=True)), notes


@pytest.fixture(params=[namd, openmm])
def program(request):
    return request.param


def test_they_are_read_as_by_mdanalysis(program, tmp_path):
    path = program(tmp_path / "a.dcd", 0, 4000, 6000, 500)
    universe = mda.Universe.empty(N_ATOMS)
    universe.load_new(str(path))
    with mdio.open(path) as layout:
        block = layout.read(0, layout.info.n_frames)
        assert layout.info.n_frames == len(universe.trajectory) == 4
    for number, ts in enumerate(universe.trajectory):
        assert np.array_equal(ts.positions, block.positions[number])
        assert ts.time == pytest.approx(block.time[number])
        assert np.allclose(ts.dimensions, block.box[number])


def test_a_restart_that_writes_more_often(program, tmp_path):
    """From the checkpoint at step 4000, each 250 steps; the first run went on to step 5000."""
    parts = [
        program(tmp_path / "z1.dcd", 0, 0, 5000, 500),
        program(tmp_path / "a2.dcd", 1, 4000, 6000, 250),
    ]
    former = [(0.0, float(step)) for step in range(500, 4001, 500)]
    restart = [(1.0, float(step)) for step in range(4250, 6001, 250)]
    for order in (parts, parts[::-1]):
        found, notes = seen(order)
        assert found == former + restart
        assert any("dropped" in note and "z1.dcd" in note for note in notes)
    found, _ = seen(parts, overlap="keep-first")
    assert found[:10] == [(0.0, float(step)) for step in range(500, 5001, 500)]
    assert found[10:] == [(1.0, float(step)) for step in range(5250, 6001, 250)]
    with pytest.raises(SourceError, match="overlap in time"):
        seen(parts, overlap="error")


def test_restarts_that_follow_each_other(program, tmp_path):
    parts = [
        program(tmp_path / f"{n}.dcd", n, 2000 * n, 2000 * n + 2000, 500 // (n + 1))
        for n in range(2)
    ]
    found, notes = seen(parts)
    assert [step for _, step in found] == [*range(500, 2001, 500), *range(2250, 4001, 250)]
    assert not notes


def test_steps_that_start_at_0_again(program, tmp_path):
    """A restart without ``firsttimestep``, or ``currentStep``: times do not tell."""
    parts = [program(tmp_path / f"{n}.dcd", n, 0, 2000, 500) for n in range(2)]
    with pytest.raises(SourceError, match=r"begin at the same time.* --overlap keep-all"):
        seen(parts)
    with mdio.open([str(path) for path in parts], overlap="keep-all") as layout:
        assert layout.info.n_frames == 8


@pytest.mark.parametrize("name", ["a.zarr", "a.h5md", "a.segments"])
def test_a_run_that_is_counted_anew_drops_no_frame_of_the_first(program, tmp_path, name):
    """Of two runs that each begin at step 0, only one has stored its first frame."""
    parts = [program(tmp_path / f"{n}.dcd", n, 500 * n, 2000, 500) for n in range(2)]
    with mdio.open(str(parts[0])) as first, mdio.open(str(parts[1])) as second:
        assert second.info.time_first_ps - first.info.time_first_ps == pytest.approx(
            first.info.dt_ps
        )
    with pytest.raises(SourceError, match=r"or each from that of its own run.* --overlap keep-all"):
        seen(parts)
    out = tmp_path / name
    mdio.convert(parts[0], out)
    with pytest.raises(SourceError, match=r"one frame apart .* --overlap keep-last"):
        mdio.append(parts[1], out)
    assert mdio.verify(out, parts[0]).ok


@pytest.mark.parametrize("steps_fs", [(2.0, 1.0), (4.0, 2.0)])
def test_another_length_of_step_is_no_overlap_that_times_tell(program, tmp_path, steps_fs):
    """Steps go on being counted, so that times of the second file fall among the first one's."""
    parts = [
        program(tmp_path / f"{n}.dcd", n, 4000 * n, 4000 * n + 4000, 500, steps_fs[n])
        for n in range(2)
    ]
    with pytest.raises(SourceError, match=r"steps of 0\.00\d and 0\.00\d ps.*--overlap keep-all"):
        seen(parts)
    with mdio.open([str(path) for path in parts], overlap="keep-all") as layout:
        assert layout.info.n_frames == 16
    with mdio.open([str(path) for path in parts], overlap="keep-last") as layout:
        assert layout.info.n_frames == 12


def test_steps_that_do_not_go_on_are_told(adk, tmp_path, capsys):
    mdio.convert(adk["xtc"], tmp_path / "a.xtc", stop=40)
    mdio.convert(adk["xtc"], tmp_path / "b.dcd", start=40)
    parts = [tmp_path / "a.xtc", tmp_path / "b.dcd"]
    for overlap in (None, "keep-all"):
        notes = mdio.convert(parts, tmp_path / f"{overlap}.zarr", overlap=overlap).plan.notes
        (told,) = (note for note in notes if "steps do not go on" in note)
        assert "b.dcd holds none" in told
    mdio.convert(parts[0], tmp_path / "c.zarr", precision="none")
    assert any(
        "b.dcd holds none" in note for note in mdio.append(parts[1], tmp_path / "c.zarr").plan.notes
    )
    mdio.convert(parts[1], tmp_path / "d.zarr", stop=30)
    notes = mdio.append(parts[1], tmp_path / "d.zarr").plan.notes  # whose frames go on by 1
    assert not any("steps do not" in note for note in notes)
    for same in (parts[:1] * 2, parts[1:] * 2):
        assert not any("steps do not" in note for note in mdio.open(same).notes)


@pytest.mark.parametrize("suffix", [".nc", ".dcd"])
def test_numbers_of_frames_that_start_again_where_they_are_stored(adk, tmp_path, suffix):
    parts = [tmp_path / f"{name}{suffix}" for name in ("first", "second")]
    mdio.convert(adk["xtc"], parts[0], stop=40)
    mdio.convert(adk["xtc"], parts[1], start=40)

    def told(result):
        return [note for note in result.plan.notes if "steps" in note]

    (note,) = told(mdio.convert(parts, tmp_path / "joined.trr"))
    assert "steps start again" in note and f"second{suffix}" in note
    with mdio.open(tmp_path / "joined.trr") as layout:  # what the note says is so
        block = layout.read(39, 41)
        assert block.step[1] < block.step[0] and block.time[1] > block.time[0]
    assert not told(mdio.convert(parts, tmp_path / f"joined{suffix}"))  # which holds no steps
    mdio.convert(parts[0], tmp_path / "joined.zarr")
    (note,) = told(mdio.append(parts[1], tmp_path / "joined.zarr"))
    assert f"second{suffix} holds none" in note and "integration" not in note
