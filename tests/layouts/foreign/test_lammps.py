"""LAMMPS dumps of all kinds, beside the numbers they were made of."""

import gzip

import numpy as np
import pytest

import mdio
from mdio.core.boxes import vectors_from_boxes
from mdio.core.errors import MdioError, SourceError
from mdio.layouts.foreign import compressed


def by_zstd(path, mode):
    zstd = compressed._zstd() or pytest.importorskip("backports.zstd")
    return zstd.open(path, mode, options={zstd.CompressionParameter.checksum_flag: 1})


OPENED = pytest.mark.parametrize(
    ("suffix", "opened"), [(".gz", gzip.open), (".zst", by_zstd)], ids=["gz", "zst"]
)

N_FRAMES, N_ATOMS = 4, 11
CELLS = {
    "orthogonal": np.diag([12.0, 14.0, 16.0]),
    "triclinic": np.array([[12.0, 0, 0], [3.0, 14.0, 0], [-2.0, 4.0, 16.0]]),
}
ORIGIN = np.array([-3.0, 2.0, 5.0])


def bounds(cell):
    """Return the lines of a cell, as LAMMPS bounds it."""
    (lx, _, _), (xy, ly, _), (xz, yz, lz) = cell
    low, high = ORIGIN.copy(), ORIGIN + np.array([lx, ly, lz])
    if not (xy or xz or yz):
        return "ITEM: BOX BOUNDS pp pp pp\n" + "".join(
            f"{a} {b}\n" for a, b in zip(low, high, strict=True)
        )
    low[:2] += min(0, xy, xz, xy + xz), min(0, yz)
    high[:2] += max(0, xy, xz, xy + xz), max(0, yz)
    rows = zip(low, high, (xy, xz, yz), strict=True)
    return "ITEM: BOX BOUNDS xy xz yz pp pp pp\n" + "".join(f"{a} {b} {c}\n" for a, b, c in rows)


def write(path, cell, columns, opened=open):
    """Write atoms and columns in another order each frame; return them from the box's corner on."""
    rng = np.random.default_rng(3)
    scaled = rng.random((N_FRAMES, N_ATOMS, 3)) + ("u" in columns[0]) * rng.integers(-2, 3, 3)
    positions = scaled @ cell
    values = scaled if "s" in columns[0] else positions + ORIGIN
    velocities = rng.normal(size=positions.shape)
    with opened(path, "wt") as file:
        for frame in range(N_FRAMES):
            file.write(f"ITEM: TIMESTEP\n{frame * 100}\nITEM: NUMBER OF ATOMS\n{N_ATOMS}\n")
            names = rng.permutation(
                ["id", "type", *columns, "vx", "vy", "vz", "q"][: None if frame % 2 else -1]
            )
            file.write(bounds(cell) + f"ITEM: ATOMS {' '.join(names)}\n")
            for atom in rng.permutation(N_ATOMS):
                of = {"id": atom + 1, "type": 1, "q": 0.5}
                of |= dict(zip(columns, map("{:.9f}".format, values[frame, atom]), strict=True))
                of |= dict(
                    zip(
                        ("vx", "vy", "vz"),
                        map("{:.9f}".format, velocities[frame, atom]),
                        strict=True,
                    )
                )
                file.write(" ".join(str(of[name]) for name in names) + "\n")
    return positions, velocities


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("kind", ["", "s", "u", "su"])
def test_dumps_give_the_numbers_they_were_made_of(tmp_path, cell, kind):
    path = tmp_path / "a.dump"
    positions, velocities = write(path, CELLS[cell], [f"{axis}{kind}" for axis in "xyz"])
    with mdio.open(path, dt=0.002) as layout:
        block = layout.read(0, N_FRAMES)
        np.testing.assert_allclose(block.positions, positions, atol=2e-5)
        np.testing.assert_allclose(block.velocities, velocities, atol=1e-5)
        np.testing.assert_allclose(vectors_from_boxes(block.box)[1], CELLS[cell], atol=1e-4)
        np.testing.assert_allclose(block.time, 0.2 * np.arange(N_FRAMES))
        assert block.step.tolist() == [0, 100, 200, 300]


@pytest.mark.parametrize(
    ("low", "high", "boundary", "is_told"),
    [
        (0.5, 10.5, "pp", True),
        (-0.5, 10.5, "pp", False),
        (0.0, 11.0, "pp", False),
        (-0.5, 10.5, "ss", True),
        (0.0, 11.0, "ss", False),
    ],
)
def test_a_box_whose_corner_moves_is_told(tmp_path, low, high, boundary, is_told):
    """As by mdtraj, or around atoms (ss); not of a periodic box that grows or shrinks."""
    frames = [
        f"ITEM: TIMESTEP\n{step}\nITEM: NUMBER OF ATOMS\n1\nITEM: BOX BOUNDS{f' {boundary}' * 3}\n"
        + f"{first} {last}\n" * 3
        + "ITEM: ATOMS id type xu yu zu\n1 1 5 5 5\n"
        for step, first, last in ((0, 0.0, 10.0), (1, low, high))
    ]
    (tmp_path / "a.dump").write_text("".join(frames))
    with mdio.open(tmp_path / "a.dump") as layout:
        assert ("displacements contain its movement" in " ".join(layout.notes)) == is_told


@pytest.mark.parametrize(("columns", "is_told"), [("x y z", True), ("xu yu zu", False)])
def test_images_that_are_not_read_are_told(tmp_path, columns, is_told):
    text = f"ITEM: TIMESTEP\n0\nITEM: NUMBER OF ATOMS\n1\n{bounds(CELLS['orthogonal'])}"
    (tmp_path / "a.dump").write_text(f"{text}ITEM: ATOMS id {columns} ix iy iz\n1 5 5 5 0 1 0\n")
    with mdio.open(tmp_path / "a.dump") as layout:
        assert ("ix iy iz" in " ".join(layout.notes)) == is_told


def test_dumps_of_chemfiles_are_told(tmp_path):
    """Its LAMMPSTrajectory.cpp writes the edges of a tilted box where bounds are expected."""
    chemfiles = pytest.importorskip("chemfiles")
    path, cell = tmp_path / "a.lammpstrj", chemfiles.UnitCell([20, 21, 22], [90, 90, 90])
    frame = chemfiles.Frame()
    frame.cell = cell
    frame.add_atom(chemfiles.Atom("C", "1"), [1, 2, 3])
    with chemfiles.Trajectory(str(path), "w", "LAMMPS") as file:
        file.write(frame)
    with mdio.open(path) as layout:
        assert "chemfiles seems to have written it" in " ".join(layout.notes)


@pytest.mark.parametrize("workers", [1, 2])
@OPENED
def test_packed_dumps_are_converted(tmp_path, workers, suffix, opened):
    path = tmp_path / f"a.lammpstrj{suffix}"
    positions, _ = write(path, CELLS["triclinic"], ["x", "y", "z"], opened)
    mdio.convert(path, tmp_path / "a.zarr", workers=workers)
    with mdio.open(tmp_path / "a.zarr") as layout:
        np.testing.assert_allclose(layout.read(0, N_FRAMES).positions, positions, atol=2e-5)


@OPENED
def test_packed_dumps_that_are_damaged(tmp_path, suffix, opened):
    path = tmp_path / f"a.lammpstrj{suffix}"
    write(path, CELLS["orthogonal"], ["x", "y", "z"], opened)
    whole = path.read_bytes()
    turned = bytearray(whole)
    turned[len(whole) // 2] ^= 0x55
    for raw in (whole[: len(whole) // 2], whole[:10], bytes(turned), b"ITEM: TIMESTEP\n" * 9):
        path.write_bytes(raw)
        with pytest.raises(MdioError) as error, mdio.open(path) as layout:
            layout.read(0, layout.info.n_frames)
        assert path.name in str(error.value) and "\n" not in str(error.value)


def test_zstandard_that_is_not_there_is_named(tmp_path, monkeypatch):
    path = tmp_path / "a.lammpstrj.zst"
    write(path, CELLS["orthogonal"], ["x", "y", "z"], by_zstd)
    monkeypatch.setattr(compressed, "_zstd", lambda: None)
    with pytest.raises(SourceError, match="pip install backports"):
        _ = mdio.open(path).info
