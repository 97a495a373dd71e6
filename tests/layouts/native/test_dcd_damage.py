"""DCD files that are truncated, damaged, or none."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from suites.native_files import CELLS, made_up, write_dcd

import mdio
from mdio.core.errors import MdioError, SourceError
from mdio.layouts.native.dcd import DCDLayout


@pytest.mark.parametrize("salvage", [False, True])
def test_velocities_are_not_taken_for_positions(tmp_path, salvage):
    """A file of CHARMM's or GENESIS' velocities is one of positions but for its first word."""
    path = tmp_path / "velocities.dcd"
    write_dcd(path, made_up(3, 4))
    path.write_bytes(path.read_bytes().replace(b"CORD", b"VELD", 1))
    with pytest.raises(SourceError, match=r"velocities\.dcd.*VELD"):
        mdio.convert(path, tmp_path / "a.zarr", salvage=salvage)


@pytest.mark.parametrize("fixed", [None, [1]])
def test_of_a_cut_file_the_whole_frames_are_read(tmp_path, fixed):
    whole, cut = tmp_path / "whole.dcd", tmp_path / "cut.dcd"
    write_dcd(whole, made_up(3, 4), CELLS[:3], fixed=fixed)
    raw = whole.read_bytes()
    with DCDLayout(whole) as layout:
        expected = layout.read(0, 3)
        ends = [layout.header.frame_offset(n) for n in (1, 2, 3)]
    for nbytes in range(len(raw)):
        cut.write_bytes(raw[:nbytes])
        n_whole = sum(end <= nbytes for end in ends)
        if not n_whole:
            with pytest.raises(SourceError, match=r"cut\.dcd"):
                DCDLayout(cut).info  # noqa: B018
            continue
        with DCDLayout(cut) as layout:
            assert layout.info.n_frames == n_whole
            left = nbytes - ends[n_whole - 1]
            at = (n_whole, ends[n_whole - 1], left)
            assert [(o.frame, o.offset, o.nbytes) for o in layout.info.lost] == [at] * bool(left)
            assert all(one.at_end for one in layout.info.lost)
            found = layout.read(0, n_whole)
            assert found.positions.tobytes() == expected.positions[:n_whole].tobytes()
            assert found.box.tobytes() == expected.box[:n_whole].tobytes()


def test_damage_is_never_more_than_an_error(tmp_path):
    path = tmp_path / "whole.dcd"
    write_dcd(path, made_up(3, 4), CELLS[:3], fixed=[1])
    raw = path.read_bytes()
    random = np.random.default_rng(3)
    n_errors = 0
    for _ in range(400):
        damaged = bytearray(raw)
        for position in random.integers(0, len(raw) if _ % 2 else 320, 3):
            damaged[position] = random.integers(0, 256)
        path.write_bytes(damaged)
        try:
            with DCDLayout(path) as layout:
                layout.read(0, layout.info.n_frames)
        except MdioError:
            n_errors += 1
    assert n_errors > 50


@pytest.mark.parametrize(
    "raw", [b"", b"CORD", bytes(400), struct.pack("<i", 84) + b"CORD", b"\xff" * 300]
)
def test_other_bytes(tmp_path, raw):
    path = tmp_path / "other.dcd"
    path.write_bytes(raw)
    with pytest.raises(SourceError, match=r"other\.dcd"):
        DCDLayout(path).info  # noqa: B018


def test_a_header_that_is_cut_says_how_many_bytes_follow(tmp_path):
    write_dcd(tmp_path / "a.dcd", made_up(1, 3))
    size = DCDLayout(tmp_path / "a.dcd").header.nbytes
    (tmp_path / "b.dcd").write_bytes((tmp_path / "a.dcd").read_bytes()[: size - 6])
    with pytest.raises(SourceError, match="length of 4, expected at most 0, since the file ends"):
        _ = DCDLayout(tmp_path / "b.dcd").info


def test_no_frames_and_no_file(tmp_path):
    write_dcd(tmp_path / "empty.dcd", made_up(0, 3))
    with pytest.raises(SourceError, match="no frames"):
        DCDLayout(tmp_path / "empty.dcd").info  # noqa: B018
    with pytest.raises(SourceError, match=r"none\.dcd: no such file"):
        DCDLayout(tmp_path / "none.dcd").info  # noqa: B018
    assert not DCDLayout.sniff(tmp_path)
    assert not DCDLayout.sniff(tmp_path / "none.dcd")


def test_a_count_of_atoms_that_lies_allocates_nothing(tmp_path):
    path = tmp_path / "lie.dcd"
    write_dcd(path, made_up(1, 4))
    raw = bytearray(path.read_bytes())
    raw[268:272] = struct.pack("<i", 2**31 - 1)
    path.write_bytes(raw)
    with pytest.raises(SourceError, match="frame 0 is truncated"):
        DCDLayout(path).info  # noqa: B018


def test_damage_inside_a_frame_is_named(tmp_path):
    path = tmp_path / "damaged.dcd"
    write_dcd(path, made_up(5, 4), CELLS[:5])
    with DCDLayout(path) as layout:
        offset = layout.header.frame_offset(3) + 56 + 24
    raw = bytearray(path.read_bytes())
    raw[offset] += 1
    path.write_bytes(raw)
    with pytest.raises(SourceError, match="frame 3 is damaged: the record of its y has a length"):
        DCDLayout(path).read(0, 5)
    DCDLayout(path).read(0, 3)


@pytest.mark.parametrize("axis", range(3))
def test_damage_inside_the_first_frame_of_fixed_atoms(tmp_path, axis):
    path = tmp_path / "x.dcd"
    write_dcd(path, made_up(3, 4), CELLS[:3], fixed=[1])
    with DCDLayout(path) as layout:
        at = layout.header.nbytes + layout.header.cell_nbytes + axis * 24
    raw = bytearray(path.read_bytes())
    raw[at] ^= 4
    path.write_bytes(raw)
    says = rf"x\.dcd: frame 0 is damaged: the record of its {'xyz'[axis]}"
    with pytest.raises(SourceError, match=says), DCDLayout(path) as layout:
        _ = layout.info


def test_a_file_that_is_cut_while_open(tmp_path):
    path = tmp_path / "shrinking.dcd"
    write_dcd(path, made_up(5, 4), CELLS[:5])
    with DCDLayout(path) as layout:
        _ = layout.info
        with path.open("r+b") as file:
            file.truncate(400)
        with pytest.raises(SourceError, match="has been cut"):
            layout.read(0, 5)


def test_a_damaged_cell_of_the_first_frame_leaves_the_others(tmp_path):
    path = tmp_path / "x.dcd"
    write_dcd(path, made_up(3, 4), CELLS[:3])
    with DCDLayout(path) as layout:
        at, expected = layout.header.nbytes, layout.read(1, 3)
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    with DCDLayout(path) as layout:
        assert layout.read(1, 3).positions.tobytes() == expected.positions.tobytes()
        with pytest.raises(SourceError, match="frame 0 is damaged: the record of its unit cell"):
            layout.read(0, 1)
