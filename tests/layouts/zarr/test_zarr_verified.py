"""Whatever is read of a tree is verified: damage is found, or changes nothing that is read."""

import json
import random
import shutil
from contextlib import suppress
from itertools import chain

import MDAnalysis as mda
import numpy as np
import pytest
import zarr
from suites.zarr_cases import make_block, write_tree

import mdio
from mdio.core.errors import CorruptLayoutError, MdioError
from mdio.layouts.zarr.layout import ZarrLayout

N_FRAMES, N_ATOMS = 23, 17
GROUP = [1, 5, 6]
VALUE = "particles/trajectory/position/value"
KINDS = {
    "raw": {},
    "columns": {"chunk_atoms": 7},
    "zstd": {"compression": "zstd"},
    "quantised": {"precision": 0.01},
    "quantised-lz4": {"precision": 0.01, "compression": "lz4"},
    "auto": {"precision": "auto", "source": {"compression": "xtc", "precision": 0.01}},
}


def xtc_block(scale=1.0):
    """Return frames whose positions are those of an XTC of 0.01 angstrom."""
    block = make_block(N_FRAMES, N_ATOMS)
    integers = np.rint(block.positions * 100 * scale).astype(np.float32)
    block.positions[...] = integers * (np.float32(1) / np.float32(1000)) * np.float32(10)
    block.box[...] *= scale
    block.time[...] *= scale
    return block


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """Two outputs of each kind that are equal in shape: chunks of 4 frames, shards of 8."""
    folder = tmp_path_factory.mktemp("trees")
    (folder / "one").mkdir()
    (folder / "other").mkdir()
    for name, options in KINDS.items():
        for which, scale in (("one", 1.0), ("other", 1.01)):
            write_tree(
                folder / which / f"{name}.zarr",
                xtc_block(scale),
                chunk_frames=4,
                piece_chunks=2,
                groups={"ca": GROUP},
                **options,
            )
    return folder


@pytest.fixture(params=KINDS)
def tree(trees, tmp_path, request):
    return shutil.copytree(trees / "one" / f"{request.param}.zarr", tmp_path / "a.zarr")


@pytest.fixture
def other(trees, tree, request):
    return trees / "other" / f"{request.node.callspec.params['tree']}.zarr"


@pytest.fixture
def raw(trees, tmp_path):
    return shutil.copytree(trees / "one" / "raw.zarr", tmp_path / "a.zarr")


def flip(path, at, bit=3):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(bytes(data))


WAYS = {
    "all": lambda layout: layout.read(0, N_FRAMES),
    "chunks": lambda layout: layout.read(4, 12),
    "one frame": lambda layout: layout.read(9, 10),
    "short": lambda layout: layout.read(13, 22),
    "atoms": lambda layout: layout.read(0, N_FRAMES, atoms=[16, 3]),
    "atoms of a frame": lambda layout: layout.read(21, 22, atoms=[3, 12]),
    "group": lambda layout: layout.read(2, 20, atoms=GROUP),
    "no atoms": lambda layout: layout.read(0, N_FRAMES, atoms=[]),
}


def arrays_of(block):
    return [block.positions, block.box, block.time, block.step]


def read_by_every_way(path):
    """Return what each way of reading gives, None where it raises an error of ours."""
    found = dict.fromkeys([*WAYS, "ca"])
    with ZarrLayout(path) as layout, ZarrLayout(path, group="ca") as ca:
        for way, read in [*WAYS.items(), ("ca", lambda _: ca.read(0, N_FRAMES))]:
            with suppress(MdioError):
                found[way] = arrays_of(read(layout))
    return found


def bad_in(path):
    """Return what verify finds."""
    try:
        with ZarrLayout(path) as layout:
            return [problem for _, problem in layout.check() if problem is not None]
    except MdioError as error:
        return [str(error)]


def differs(found, expected):
    """Return the ways of reading that gave other numbers, without a word."""
    return [
        way
        for way, arrays in found.items()
        if arrays is not None
        and not all(np.array_equal(*pair) for pair in zip(arrays, expected[way], strict=True))
    ]


def files_of(path):
    return sorted(p for p in path.rglob("*") if p.is_file())


def flips(path, chance, n_each):
    """Flip bits of every file, each at several places; yield its name and undo it."""
    for file in files_of(path):
        keep = file.read_bytes()
        for _ in range(n_each):
            at, bit = chance.randrange(len(keep)), chance.randrange(8)
            flip(file, at, bit)
            yield f"{file.relative_to(path)} byte {at} bit {bit}"
            file.write_bytes(keep)


def zeroed(path, chance):
    """Zero a run of bytes of every file of data, as a lost page is."""
    for file in files_of(path):
        keep = file.read_bytes()
        size = min(chance.choice([16, 64, 512, 4096]), len(keep))
        begin = chance.randrange(len(keep) - size + 1)
        lost = keep[:begin] + bytes(size) + keep[begin + size :]
        if lost != keep:
            file.write_bytes(lost)
            yield f"{file.relative_to(path)} bytes {begin} to {begin + size} zero"
            file.write_bytes(keep)


def swapped(path, other):
    """Put each file of another output of the same shape into the place of ours."""
    for file in files_of(path):
        keep, foreign = file.read_bytes(), (other / file.relative_to(path)).read_bytes()
        if file.name != "zarr.json" and foreign != keep:
            file.write_bytes(foreign)
            yield f"{file.relative_to(path)} of another output"
            file.write_bytes(keep)


def exchanged(path):
    """Put another file of the same array into each one's place."""
    for file in files_of(path):
        for twin in file.parent.glob("c.*"):
            keep = file.read_bytes()
            if file.name != "zarr.json" and twin.read_bytes() != keep:
                file.write_bytes(twin.read_bytes())
                yield f"{file.relative_to(path)} from {twin.name}"
                file.write_bytes(keep)


def missing(path):
    for file in files_of(path):
        keep = file.read_bytes()
        file.unlink()
        yield f"{file.relative_to(path)} missing"
        file.write_bytes(keep)


def test_damage_is_found_or_changes_nothing(tree, other):
    expected = read_by_every_way(tree)
    assert not bad_in(tree) and None not in expected.values()
    chance = random.Random(11)
    cases = chain(
        flips(tree, chance, 1),
        zeroed(tree, chance),
        swapped(tree, other),
        exchanged(tree),
        missing(tree),
    )
    n_cases = 0
    for what in cases:
        n_cases += 1
        assert not differs(read_by_every_way(tree), expected), what
        assert bad_in(tree), what
    assert n_cases > 100


def test_tables_of_another_output_beside_its_shard(tree, other):
    """A shard and its checksums that fit each other, but are not of this output."""
    expected = read_by_every_way(tree)
    for file in files_of(tree):
        name = file.relative_to(tree)
        if file.name != "zarr.json" and ("crc32c" in name.parts[1] or VALUE in str(name)):
            shutil.copy(other / name, file)
    assert not differs(read_by_every_way(tree), expected)
    assert bad_in(tree)


def test_a_wrong_bit_is_no_rmsd(raw, tmp_path):
    """One flipped bit in one atom, read by frames through a Universe."""
    flip(raw / VALUE / "c.1.0.0", 12 * (17 * 2 + 3) + 3, 6)
    universe = mda.Universe.empty(N_ATOMS, trajectory=False)
    with pytest.raises(Exception, match=r"c\.1\.0\.0.*checksum .*frames 8 to 11"):
        for _ in universe.load_new(str(raw)).trajectory:
            pass


@pytest.mark.parametrize("n_atoms", [40_000])
def test_pieces_of_large_frames(tmp_path, n_atoms):
    """Frames of eight pieces; a selection reads one or two of them, and meets their damage only."""
    block = make_block(7, n_atoms, box=None)
    path = tmp_path / "a.zarr"
    write_tree(path, block, chunk_frames=3, piece_chunks=2)
    low, high = [5461, 5462, 5470], [n_atoms - 1, n_atoms - 2]  # 5461 lies in two pieces
    flip(path / VALUE / "c.0.0.0", 12 * (n_atoms * 4 + 5461) + 4 + 1)
    with ZarrLayout(path) as layout:
        assert np.array_equal(layout.read(0, 7, atoms=high).positions, block.positions[:, high])
        assert np.array_equal(layout.read(0, 4, atoms=low).positions, block.positions[:4, low])
        assert np.array_equal(layout.read(1, 3).positions, block.positions[1:3])
        for start, stop, atoms in ((4, 5, low), (3, 6, None), (4, 5, None), (0, 7, [9, 39_999])):
            with pytest.raises(CorruptLayoutError, match="frames 3 to 5"):
                layout.read(start, stop, atoms=atoms)
    with ZarrLayout(path, verify=False) as layout:
        assert not np.array_equal(layout.read(0, 7).positions, block.positions)
        assert not np.array_equal(layout.read(4, 5, atoms=low).positions, block.positions[4, low])


def test_zarr_reads_the_tables(raw):
    import google_crc32c

    root = zarr.open_group(str(raw), mode="r")
    pieces = root["mdio/crc32c_pieces/trajectory/positions"][...]
    rows = root[VALUE][...]
    assert pieces.shape == (N_FRAMES, 1)
    assert pieces[:, 0].tolist() == [google_crc32c.value(row.tobytes()) for row in rows]


def test_metadata_that_others_add(raw):
    """Others may add attributes: verify says so, and reading goes on."""
    expected = read_by_every_way(raw)
    node = json.loads((raw / VALUE / "zarr.json").read_text())
    node["attributes"]["note"] = "mine"
    (raw / VALUE / "zarr.json").write_text(json.dumps(node))
    assert not differs(found := read_by_every_way(raw), expected) and None not in found.values()
    (problem,) = bad_in(raw)
    assert f"{VALUE}/zarr.json" in problem and "another program added to it" in problem
    with pytest.warns(UserWarning, match="Consolidated"):
        zarr.consolidate_metadata(str(raw))
    assert None not in read_by_every_way(raw).values()
    assert len(bad_in(raw)) == 2
    assert not mdio.verify(raw).ok
