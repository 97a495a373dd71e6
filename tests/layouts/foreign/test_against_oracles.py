"""Text trajectories of every format beside the numbers they are made of and other libraries.

Whatever is cut or in which order it is read: each frame is right, or it is told.
"""

import random
from dataclasses import replace

import numpy as np
import pytest
from suites.text_trajectories import KINDS, N_FRAMES, text_of

import mdio
from mdio.core.errors import MdioError, SourceError

EACH = pytest.mark.parametrize("name", KINDS)
STEP = 7
"""Files are cut at every line, and so many bytes apart."""


def write(tmp_path, name, raw=None):
    text = text_of(name)
    path = tmp_path / f"a.{text.suffix}"
    path.write_bytes(text.raw if raw is None else raw)
    return path, text


def check(layout, number, frame):
    """Compare a frame with what it was made of."""
    block = layout.read(number, number + 1)
    np.testing.assert_allclose(block.positions[0], frame.positions, atol=2e-5)
    np.testing.assert_allclose(block.box[0], 0 if frame.box is None else frame.box, atol=1e-4)
    assert block.step[0] == frame.step
    assert block.time[0] == pytest.approx(frame.number if frame.time is None else frame.time)
    if frame.velocities is not None:
        np.testing.assert_allclose(block.velocities[0], frame.velocities, atol=2e-5)
    elif block.velocities is not None:
        assert np.isnan(block.velocities).all()


@EACH
def test_frames_are_right_in_any_order(tmp_path, name):
    path, text = write(tmp_path, name)
    for seed in range(5):
        with mdio.open(path, **text.options) as layout:
            assert layout.info.n_frames == N_FRAMES and not layout.info.lost
            for number in random.Random(seed).choices(range(N_FRAMES), k=2 * N_FRAMES):
                check(layout, number, text.frames[number])


@EACH
@pytest.mark.parametrize("workers", [1, 2])
def test_outputs_are_the_same_with_any_number_of_workers(tmp_path, name, workers):
    path, text = write(tmp_path, name)
    out = tmp_path / "a.zarr"
    mdio.convert(
        path,
        out,
        workers=workers,
        storage=mdio.Storage(chunk_frames=1),
        source_options=text.options,
    )
    with mdio.open(out) as layout:
        for number in range(N_FRAMES):
            check(layout, number, text.frames[number])


@EACH
def test_files_that_are_cut_anywhere(tmp_path, name):
    path, text = write(tmp_path, name)
    raw, ends = text.raw, text.ends
    lines = [at + 1 for at, byte in enumerate(raw) if byte == ord("\n")]
    for cut in sorted({*range(1, len(raw), STEP), *lines, *(at - 1 for at in lines)}):
        path.write_bytes(raw[:cut])
        n_whole = sum(end <= cut for end in ends)
        if name in ("TRC", "MOL2") and n_whole and text.frames[n_whole - 1].box is None:
            n_whole -= 1  # as the first has a box, the last looks cut
        if name.startswith(("MDCRD", "MOL2")) and n_whole == 1:
            n_whole = 0  # it may be open whether what follows the first frame is a box
        try:
            with mdio.open(path, **text.options) as layout:
                info, notes = layout.info, " ".join(layout.notes)
                frames = text.frames
                if raw[:cut].strip() == text.first_without_box.strip():
                    frames = [replace(frames[0], box=None)]  # a file that is whole as it is
                for number in range(0 if "is unknown" in notes else info.n_frames):
                    check(layout, number, frames[number])
        except SourceError as error:
            assert n_whole == 0, (cut, error)
            continue
        assert info.n_frames >= max(n_whole, 1), cut
        end = ends[info.n_frames - 1]
        assert bool(info.lost) == bool(raw[end:cut].strip()), cut


@EACH
@pytest.mark.parametrize("seed", range(40))
def test_damage_is_never_more_than_an_error(tmp_path, name, seed):
    chance = random.Random(seed)
    raw = bytearray(text_of(name).raw)
    lines = bytes(raw).splitlines(keepends=True)
    at, line = chance.randrange(len(raw)), chance.randrange(len(lines))
    if seed % 4 == 0:
        raw[at] = chance.randrange(256)
    elif seed % 4 == 1:
        del raw[at : at + chance.randrange(1, 30)]
    elif seed % 4 == 2:
        raw[at:at] = chance.choice([b"\x00", b"\xff", b"-", b"E", b"9" * 30, b"\n"])
    else:
        raw = b"".join([*lines[:line], chance.choice(lines), *lines[line + 1 :]])
    path, text = write(tmp_path, name, bytes(raw))
    try:
        with mdio.open(path, **text.options) as layout:
            layout.read(0, layout.info.n_frames)
            layout.topology()
    except MdioError as error:
        assert path.name in str(error) and "\n" not in str(error)


@pytest.mark.parametrize("name", [name for name in KINDS if not name.startswith("PDB")])
@pytest.mark.parametrize("more", ["something else\n", "7\n", "\x00\x01\x02"])
def test_what_is_left_over_is_told(tmp_path, name, more):
    """PDB may hold any other records behind its frames."""
    text = text_of(name)
    path, _ = write(tmp_path, name, text.raw + more.encode())
    with mdio.open(path, **text.options) as layout:
        assert layout.info.n_frames == N_FRAMES
        assert len(layout.info.lost) == 1
    with pytest.raises(SourceError, match="--salvage"):
        mdio.convert(path, tmp_path / "a.zarr", source_options=text.options)
    path.write_bytes(text.raw + b"\n \n")
    with mdio.open(path, **text.options) as layout:
        assert layout.info.n_frames == N_FRAMES and not layout.info.lost


def by_chemfiles(path, name):
    """Yield positions and box lengths as chemfiles has them."""
    chemfiles = pytest.importorskip("chemfiles")
    with chemfiles.Trajectory(str(path), "r", name) as frames:
        for _ in range(frames.nsteps):
            frame = frames.read()
            yield frame.positions.copy(), np.array(frame.cell.lengths)


def by_ase(path, name):
    """Yield positions and box lengths as ASE has them."""
    io = pytest.importorskip("ase.io")
    for atoms in io.read(str(path), index=":", format=name):
        yield atoms.positions, atoms.cell.lengths()


def by_mdtraj(path, _):
    """Yield positions as mdtraj has them; it gives all frames the same kind of cell."""
    mdtraj = pytest.importorskip("mdtraj")
    for positions in mdtraj.load(str(path)).xyz:
        yield positions * 10.0, None


@pytest.mark.parametrize(
    ("name", "oracle", "format"),
    [
        ("XYZ", by_chemfiles, "XYZ"),
        ("XYZ", by_ase, "extxyz"),
        ("GRO", by_mdtraj, "GRO"),
        ("PDB", by_mdtraj, "PDB"),
        ("PDB by END", by_mdtraj, "PDB"),
        ("PDB", by_chemfiles, "PDB"),
        ("PDB by END", by_chemfiles, "PDB"),
        ("LAMMPS", by_chemfiles, "LAMMPS"),
        ("LAMMPS, scaled", by_chemfiles, "LAMMPS"),
        ("LAMMPS, scaled", by_ase, "lammps-dump-text"),
        ("MOL2", by_chemfiles, "MOL2"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_other_libraries_find_the_same(tmp_path, name, oracle, format):
    path, text = write(tmp_path, name)
    others = list(oracle(path, format))
    assert len(others) == N_FRAMES
    with mdio.open(path, **text.options) as layout:
        block = layout.read(0, N_FRAMES)
    for number, (positions, lengths) in enumerate(others):
        # Other libraries leave the origin of a dump where it is.
        shift = block.positions[number, 0] - positions[0] if name.startswith("LAMMPS") else 0
        np.testing.assert_allclose(block.positions[number], positions + shift, atol=2e-5)
        if lengths is not None and name != "MOL2":  # of which chemfiles reads no cell
            np.testing.assert_allclose(block.box[number, :3], lengths, atol=1e-4)
