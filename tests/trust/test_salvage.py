"""Files that are cut or damaged at random: all frames that nothing happened to are recovered.

``MDIO_SALVAGES=2000 pytest tests/trust/test_salvage.py`` tries more of them.
"""

import os

import h5py
import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, NCDF, TRR, XTC
from suites.segment_cases import raw_frames

import mdio
from mdio.cli.main import main

N_FILES = int(os.environ.get("MDIO_SALVAGES", "24"))
SOURCES = {"xtc": XTC, "trr": TRR, "dcd": DCD, "ncdf": NCDF}
N_FRAMES, N_ATOMS = 12, 100
FIRST_HEADER = {"xtc": 100, "trr": 200, "dcd": 0, "ncdf": 0}
"""Bytes of the first frame that tell how many atoms there are, and have to be whole."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Small files, and where the frames of each begin and end."""
    folder = tmp_path_factory.mktemp("sources")
    found = {}
    for kind, source in SOURCES.items():
        path = folder / f"whole.{kind}"
        times = -(-N_FRAMES // 10) if kind in ("xtc", "trr") else 1
        words = {"stop": N_FRAMES, "select": np.arange(N_ATOMS)}
        mdio.convert([source] * times, path, overlap="keep-all", **words)
        sizes = [len(frame) for frame in raw_frames(path)]
        begin = path.stat().st_size - sum(sizes)
        with mdio.open(path) as layout:
            frames = layout.read(0, N_FRAMES).positions
        found[kind] = path.read_bytes(), begin + np.cumsum([0, *sizes]), frames
    return found


def damage(raw, edges, first, random):
    """Cut it, or write over, zero, remove or insert bytes; return it and the frames left whole."""
    data = bytearray(raw)
    begin = int(edges[0]) + first
    at = int(random.integers(begin, len(raw)))
    end = min(at + int(random.integers(1, 2000)), len(raw))
    how = int(random.integers(0, 5))
    if how == 0:
        del data[at:]
        end = len(raw)
    elif how == 1:
        data[at:end] = random.bytes(end - at)
    elif how == 2:
        data[at:end] = bytes(end - at)
    elif how == 3:
        data[at] ^= 1 << int(random.integers(0, 8))
        end = at + 1
    else:  # close to where a frame begins
        at = max(begin, int(random.choice(edges[:-1])) + int(random.integers(-8, 60)))
        end = min(at + 40, len(raw))
        data[at:end] = random.bytes(end - at)
    whole = [k for k in range(N_FRAMES) if edges[k + 1] <= at or edges[k] >= end]
    return bytes(data), whole


def is_in(wanted, found):
    """Return whether all frames of `wanted` are in `found`, in this order, bit for bit."""
    rest = iter(found)
    return all(
        any(np.array_equal(frame, other, equal_nan=True) for other in rest) for frame in wanted
    )


@pytest.mark.parametrize("kind", SOURCES)
def test_all_whole_frames_are_recovered(sources, tmp_path, kind, capsys):
    raw, edges, frames = sources[kind]
    for seed in range(N_FILES // 4):
        data, whole = damage(raw, edges, FIRST_HEADER[kind], np.random.default_rng(seed))
        if not whole:
            continue
        path, out = tmp_path / f"{seed}.{kind}", tmp_path / f"{seed}.zarr"
        path.write_bytes(data)
        code = main(["convert", str(path), str(out), "--salvage"])
        said = capsys.readouterr()
        assert code == 0, (seed, said.err)
        with mdio.open(out) as layout:
            found = layout.read(0, layout.info.n_frames).positions
            source = layout.manifest["source"]
        assert is_in(frames[whole], found), (seed, len(whole), len(found))
        assert main(["verify", str(out), "--against", str(path), "--quiet"]) == 0, seed
        lost = N_FRAMES - len(found)
        if lost > 0:
            assert "lost" in source or "unreadable_frames" in source, seed
            assert "whole frame" in said.out, seed
            assert main(["verify", str(path)]) == 1
            assert main(["convert", str(path), str(tmp_path / "no.zarr")]) == 1
            err = capsys.readouterr().err
            assert "--salvage" in err, (seed, err)
        capsys.readouterr()


def write_and_die(path, frames, n_flushed):
    """Write frames as a simulation does, flush some, and end without closing the file."""
    child = os.fork()
    if child == 0:
        file = h5py.File(path, "w")
        file.create_group("h5md").attrs["version"] = [1, 1]
        position = file.create_group("particles/all/position")
        shape = (None, *frames.shape[1:])
        value = position.create_dataset("value", (0, *shape[1:]), "f4", chunks=True, maxshape=shape)
        value.attrs["unit"] = "Angstrom"
        rows = {"step": "i8", "time": "f8"}
        series = [position.create_dataset(n, (0,), rows[n], maxshape=(None,)) for n in rows]
        series[1].attrs["unit"] = "ps"
        for number, frame in enumerate(frames):
            for dataset, row in zip((value, *series), (frame, number, 2.0 * number), strict=True):
                dataset.resize(number + 1, axis=0)
                dataset[number] = row
            if number + 1 == n_flushed:
                file.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_all_flushed_frames_of_a_file_that_was_not_closed_are_recovered(sources, tmp_path, capsys):
    frames = sources["xtc"][2]
    for seed in range(N_FILES // 4):
        random = np.random.default_rng(seed)
        n_flushed = int(random.integers(1, N_FRAMES + 1))
        n_frames = int(random.integers(n_flushed, N_FRAMES + 1))
        path, out = tmp_path / f"{seed}.h5md", tmp_path / f"{seed}.zarr"
        write_and_die(path, frames[:n_frames], n_flushed)
        assert main(["convert", str(path), str(out), "--salvage", "--quiet"]) == 0, seed
        with mdio.open(out) as layout:
            found = layout.read(0, layout.info.n_frames).positions
        assert found[:n_flushed].tobytes() == frames[:n_flushed].tobytes(), seed
        assert main(["verify", str(out), "--against", str(path), "--quiet"]) == 0, seed
        capsys.readouterr()
