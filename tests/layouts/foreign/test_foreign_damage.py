"""mdtraj's HDF5 and TNG files that are cut, damaged, or not what they say."""

from __future__ import annotations

import struct
from pathlib import Path

import h5py
import numpy as np
import pytest
from MDAnalysisTests import datafiles
from suites.files_of_others import F, N, write_mdtraj

import mdio
from mdio.core.errors import MdioError, SourceError

CREATIONS = {
    "raw": {},
    "deflated": {"chunks": (3, N, 3), "compression": "gzip"},
    "checked": {"chunks": (3, N, 3), "compression": "gzip", "fletcher32": True},
}


def look(path):
    """Return all positions, or None after an error of ours that is one line and names the file."""
    try:
        with mdio.open(path) as layout, np.errstate(all="ignore"):
            n_frames = min(layout.info.n_frames, 100)
            block = layout.read(0, n_frames)
            layout.topology()
            return block.positions
    except MdioError as error:
        assert path.name in str(error) and "\n" not in str(error), error
        return None


@pytest.mark.parametrize("kind", CREATIONS)
def test_a_cut_mdtraj_file_is_an_error(tmp_path, kind):
    x, _, _ = write_mdtraj(tmp_path / "whole.h5", **CREATIONS[kind])
    whole = (tmp_path / "whole.h5").read_bytes()
    path = tmp_path / "cut.h5"
    for nbytes in (*range(0, len(whole), len(whole) // 60), len(whole) - 1):
        path.write_bytes(whole[:nbytes])
        assert look(path) is None, nbytes
    path.write_bytes(whole)
    np.testing.assert_array_equal(look(path), x * np.float32(10))


FLOAT32 = struct.pack("<4BI2H4BI", 0x11, 0x20, 0x1F, 0, 4, 0, 32, 23, 8, 0, 23, 127)
"""As the HDF5 file format specification has its message (IV.A.2.d)."""


def test_floats_of_another_kind_are_what_hdf5_makes_of_them(tmp_path):
    """The exponents' bias is not 127: NumPy has no such type, though h5py calls it float32."""
    path = tmp_path / "odd.h5"
    x, _, _ = write_mdtraj(path)
    data = path.read_bytes()
    assert FLOAT32 in data
    path.write_bytes(data.replace(FLOAT32, FLOAT32[:-4] + struct.pack("<I", 125)))
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["coordinates"][()], x * np.float32(4))
    np.testing.assert_array_equal(look(path), x * np.float32(4) * np.float32(10))


@pytest.mark.parametrize("at", [0, 2**64 - 2])
def test_a_chunk_where_none_can_be_is_an_error(tmp_path, at):
    """In the head of the file, where HDF5 reads whatever is there, or behind all files' ends."""
    path = tmp_path / "head.h5"
    write_mdtraj(path, chunks=(3, N, 3))
    with h5py.File(path) as file:
        place = struct.pack("<Q", file["coordinates"].id.get_chunk_info(0).byte_offset)
    data = path.read_bytes()
    assert data.count(place) == 1
    path.write_bytes(data.replace(place, struct.pack("<Q", at)))
    with pytest.raises(SourceError, match=f"a chunk at byte {at} of the file, where none can be"):
        mdio.open(path).read(0, 1)


@pytest.mark.parametrize("kind", CREATIONS)
def test_a_damaged_mdtraj_file_is_what_h5py_reads_or_an_error(tmp_path, kind):
    x, _, _ = write_mdtraj(tmp_path / "whole.h5", **CREATIONS[kind])
    whole = (tmp_path / "whole.h5").read_bytes()
    path = tmp_path / "bad.h5"
    random = np.random.default_rng(7)
    n_refused = n_compared = 0
    for attempt in range(250):
        data = bytearray(whole)
        for at in random.integers(0, 3000 if attempt % 2 else len(whole), 3):
            data[at] ^= 1 << int(random.integers(8))
        path.write_bytes(data)
        found = look(path)
        if found is None:
            n_refused += 1
            continue
        with h5py.File(path) as file:
            expected = np.asarray(file["coordinates"][...], "f4") * np.float32(10)
        n_compared += 1
        # Where the key of a chunk is damaged, HDF5 gives zeros, though the chunk can be found.
        written = (x * np.float32(10)).tobytes()
        assert found.tobytes() in (expected[: len(found)].tobytes(), written), attempt
    assert n_refused > 20 and n_compared > 20, (n_refused, n_compared)


def put(file, name, values, **attrs):
    if name in file:
        del file[name]
    file[name] = values
    file[name].attrs.update(attrs)


WRONG = {
    "no frames": (lambda f: put(f, "coordinates", np.zeros((0, N, 3), "f4")), "nothing to read"),
    "no atoms": (lambda f: put(f, "coordinates", np.zeros((F, 0, 3), "f4")), "nothing to read"),
    "flat": (lambda f: put(f, "coordinates", np.zeros((F, 3 * N), "f4")), r"shape \(11, 18\)"),
    "two axes": (
        lambda f: put(f, "coordinates", np.zeros((F, N, 2), "f4")),
        r"\(11, 6, 2\), expect",
    ),
    "text": (lambda f: put(f, "coordinates", np.zeros((F, N, 3), "S4")), r"coordinates is \|S4"),
    "complex": (lambda f: put(f, "coordinates", np.zeros((F, N, 3), "c8")), "is complex64"),
    "other atoms": (
        lambda f: put(f, "velocities", np.zeros((F, N + 1, 3), "f4")),
        r"velocities .*7, 3",
    ),
    "fewer cells": (
        lambda f: put(f, "cell_lengths", np.zeros((F - 1, 3), "f4")),
        "cell_lengths .*10",
    ),
    "angles of text": (
        lambda f: put(f, "cell_angles", np.zeros((F, 3), "S4")),
        "cell_angles is",
    ),
    "time as a table": (lambda f: put(f, "time", np.zeros((F, 1), "f4")), "time has shape"),
    "a group": (lambda f: (f.pop("time"), f.create_group("time")), "time is a group"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_not_the_convention_is_an_error(tmp_path, wrong):
    change, says = WRONG[wrong]
    write_mdtraj(tmp_path / "md.h5")
    with h5py.File(tmp_path / "md.h5", "r+") as file:
        change(file)
    with pytest.raises(SourceError, match=rf"md\.h5: .*{says}") as caught:
        _ = mdio.open(tmp_path / "md.h5").info
    assert "\n" not in str(caught.value)


TNG = Path(datafiles.TNG_traj)


def tng_cases():
    whole = TNG.read_bytes()
    random = np.random.default_rng(3)
    cases = [whole[:n] for n in (1, 8, 100, 300, 1000, len(whole) // 3, len(whole) - 1)]
    for attempt in range(60):
        data = bytearray(whole)
        for at in random.integers(0, 2000 if attempt % 2 else len(whole), 3):
            data[at] ^= 1 << int(random.integers(8))
        cases.append(bytes(data))
    return cases


def test_a_damaged_tng_file_is_an_error(tmp_path):
    """Of what its package reads, since that follows damaged lengths out of memory."""
    path = tmp_path / "bad.tng"
    cases = tng_cases()
    n_refused = 0
    for data in cases:
        path.write_bytes(data)
        n_refused += look(path) is None
    assert n_refused > 0.9 * len(cases)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data[:-1], "block 11 at byte .* it is truncated or damaged"),
        (lambda data: data[:5000], "block 7 at byte .* the file has 5000"),
        (
            lambda data: data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
            "block 11 .* MD5 .*, expected",
        ),
        (lambda data: data[:153] + b"\xff" * 8 + data[161:], "block 1 at byte 153"),
        (lambda data: data[:161] + b"\xff" * 8 + data[169:], "block 1 at byte 153"),
    ],
)
def test_damage_of_a_tng_file_is_told(tmp_path, change, says):
    path = tmp_path / "bad.tng"
    path.write_bytes(change(TNG.read_bytes()))
    with pytest.raises(SourceError, match=rf"bad\.tng: {says}"):
        _ = mdio.open(path).info


def test_an_empty_file_is_an_error(tmp_path):
    for name in ("none.tng", "none.h5"):
        (tmp_path / name).write_bytes(b"")
        with pytest.raises(SourceError, match=rf"{name}: the file is empty"):
            mdio.open(tmp_path / name)
