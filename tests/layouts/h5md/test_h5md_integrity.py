"""Damage of any byte: whatever is read is right or refused, and `verify` finds it."""

import itertools
import shutil

import h5py
import MDAnalysis as mda
import numpy as np
import pytest
from suites.h5md_cases import make_block, write_h5md
from suites.per_rank import convert

import mdio
from mdio.core.errors import CorruptLayoutError, MdioError
from mdio.layouts.h5md.layout import H5MDLayout

N_FRAMES, N_ATOMS = 11, 5600  # frames of more than one piece of 64 KiB
LAYOUTS = {
    "chunks": {},
    "atom chunks": {"chunk_atoms": 700},
    "contiguous": {"contiguous": True},
    "gzip": {"compression": "gzip:1"},
    "parts": {"per_rank": True, "workers": 2},
}
SELECTION = np.array([5, 3000, 3001, 5599])
NARROW = np.arange(2000, 2010)


@pytest.fixture(scope="module")
def truth():
    return make_block(N_FRAMES, N_ATOMS)


@pytest.fixture(scope="module")
def made(truth, tmp_path_factory):
    """An output of each layout, with a group."""
    folder = tmp_path_factory.mktemp("made")
    source = folder / "source.bin"
    write_h5md(source, truth, chunk_frames=4)
    top = folder / "top.pdb"
    u = mda.Universe.empty(N_ATOMS, n_residues=1, atom_resindex=np.zeros(N_ATOMS), trajectory=True)
    for name, value in (("names", "C"), ("resnames", "ALA"), ("elements", "C")):
        u.add_TopologyAttr(name, [value] * (1 if name == "resnames" else N_ATOMS))
    u.atoms.write(str(top))
    outs = {}
    for k, (name, options) in enumerate(LAYOUTS.items()):
        outs[name] = folder / f"{k}" / "a.h5md"
        outs[name].parent.mkdir()
        group = {"some": "index 10:2999"}
        convert(
            source,
            outs[name],
            top=top,
            groups=group,
            storage=mdio.Storage(chunk_frames=4),
            **options,
        )
    return outs


def reads(layout, truth):
    """Yield what is read in every way, and what it should be."""
    yield layout.read(0, N_FRAMES), truth.frames(slice(0, N_FRAMES)), None
    yield layout.read(5, 6), truth.frames(slice(5, 6)), None
    yield layout.read(2, 7), truth.frames(slice(2, 7)), None
    yield layout.read(1, 10, atoms=SELECTION), truth.frames(slice(1, 10)), SELECTION
    yield layout.read(6, 7, atoms=NARROW), truth.frames(slice(6, 7)), NARROW
    yield layout.read(9, 11, atoms=np.arange(10, 3000)), truth.frames(slice(9, 11)), slice(10, 3000)


def is_right(got, expected, atoms):
    positions = expected.positions if atoms is None else expected.positions[:, atoms]
    same = np.array_equal(got.positions, positions)
    return same and all(
        np.array_equal(getattr(got, name), getattr(expected, name))
        for name in ("time", "step", "box")
    )


def outcome(path, truth):
    """Return whether any read was refused, and whether `verify` found something."""
    refused = False
    for way in range(6):
        try:
            with H5MDLayout(path) as layout:
                got = next(itertools.islice(reads(layout, truth), way, None))
            assert is_right(*got), f"wrong numbers in way {way}"
        except MdioError:
            refused = True
    try:
        found = not mdio.verify(path).ok
    except MdioError:
        found = True
    return refused, found


def files_of(path):
    folder = path.with_name(f"{path.name}.parts")
    return [path, *sorted(folder.glob("*.h5md"))] if folder.exists() else [path]


def copy_of(made, folder):
    for file in files_of(made):
        target = folder / file.relative_to(made.parent)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(file, target)
    return folder / made.name


def damage(data, rng, how):
    """Change the bytes of one file."""
    at = int(rng.integers(0, len(data)))
    if how == "structures":  # most of the file is frames, which lie behind or between these
        at = int(rng.integers(0, min(len(data), 6000)))
        at = at if rng.random() < 0.5 else len(data) - 1 - at
    if how == "page":
        at -= at % 4096
        data[at : at + 4096] = bytes(len(data[at : at + 4096]))
    else:
        data[at] ^= 1 << int(rng.integers(0, 8))


N_CASES = 20


@pytest.mark.parametrize("how", ["flip", "structures", "page"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_damage_is_found(made, truth, tmp_path, name, how):
    path = copy_of(made[name], tmp_path)
    files = files_of(path)
    rng = np.random.default_rng([len(name), len(how)])
    for case in range(N_CASES):
        file = files[case % len(files)]
        before = file.read_bytes()
        data = bytearray(before)
        damage(data, rng, how)
        if data != before:
            file.write_bytes(data)
            _, found = outcome(path, truth)
            assert found, f"{file.name}, case {case}: verify found nothing"
            file.write_bytes(before)
    assert outcome(path, truth) == (False, False)


@pytest.mark.parametrize("name", ["chunks", "atom chunks", "contiguous"])
def test_a_zeroed_page_is_seen_by_reads_of_one_frame(made, truth, tmp_path, name):
    """It was read as atoms at the origin."""
    path = copy_of(made[name], tmp_path)
    data = bytearray(path.read_bytes())
    row = truth.positions[6, 3500:4200].tobytes()
    at = data.index(row) + 4096
    data[at : at + 4096] = bytes(4096)
    path.write_bytes(data)
    atoms = [3900]  # within the page
    for wanted in (None, atoms):
        with H5MDLayout(path) as layout, pytest.raises(CorruptLayoutError, match="frame 6"):
            layout.read(6, 7, atoms=wanted)
    with H5MDLayout(path, verify=False) as layout:
        assert not layout.read(6, 7, atoms=atoms).positions.any()


def test_parts_that_changed_places(made, tmp_path):
    path = copy_of(made["parts"], tmp_path)
    first, second = files_of(path)[1:]
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    for start in (0, 8):
        with pytest.raises(CorruptLayoutError, match="not the part that"):
            mdio.open(path).read(start, start + 1)
    with pytest.raises(CorruptLayoutError, match="not the part that"):
        mdio.verify(path)


@pytest.mark.parametrize("name", LAYOUTS)
def test_copies_by_other_programs_have_no_seal(made, truth, tmp_path, name):
    """Opening a file for writing is enough to lose it; numbers are verified all the same."""
    path = copy_of(made[name], tmp_path)
    with h5py.File(path, "r+") as file:
        file.attrs["note"] = "mine"
    assert outcome(path, truth) == (False, False)


@pytest.mark.parametrize("seed", range(3))
def test_a_universe_of_a_damaged_file(tmp_path, seed):
    """MDAnalysis' own reader took files too damaged to tell whose they are, and read them so."""
    path, block = tmp_path / "x.h5md", make_block()
    write_h5md(path, block, chunk_frames=4)
    rng, whole = np.random.default_rng(seed), path.read_bytes()
    for _ in range(25):
        data = bytearray(whole)
        for at in rng.integers(0, 4000, 2):
            data[at] = rng.integers(0, 256)
        path.write_bytes(data)
        u = mda.Universe.empty(17)
        try:
            u.load_new(str(path))
            got = [ts.positions.copy() for ts in u.trajectory]
        except MdioError as error:
            assert "x.h5md" in str(error)
        else:
            np.testing.assert_array_equal(got, block.positions)
