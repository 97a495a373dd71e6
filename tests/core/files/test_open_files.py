"""What is done with trajectories leaves no file open; and damage to further groups is found."""

from pathlib import Path

import h5py
import pytest
from suites.per_rank import convert

import mdio
from mdio.cli.main import main

TARGETS = ["zarr", "h5md", "segments", "dcd", "xtc"]


def open_files(folder):
    """Return what this process has open in a folder."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(link.readlink()))
        except OSError:
            continue  # that of the listing itself
    return [path for path in found if path.startswith(str(folder))]


@pytest.fixture
def outputs(adk, tmp_path):
    for target in TARGETS:
        mdio.convert(adk["xtc"], tmp_path / f"a.{target}", stop=6)
    convert(adk["xtc"], tmp_path / "parts.h5md", stop=6, per_rank=True)
    yield sorted(path for path in tmp_path.iterdir() if not path.name.endswith(".parts"))
    assert open_files(tmp_path) == []


def run(*words):
    assert main([str(word) for word in words]) == 0


def test_info_and_verify(outputs):
    for path in outputs:
        run("info", path, "--json")
        run("verify", path)
        run("verify", path, "--against", path)


def test_convert_and_split(outputs, tmp_path):
    for number, path in enumerate(outputs):
        for kind in ("zarr", "segments", "dcd"):
            run("convert", path, tmp_path / f"new{number}.{kind}", "--verify", "--quiet")
            run("convert", path, path, tmp_path / f"dry.{kind}", "--dry-run")
        mdio.convert(path, tmp_path / f"few{number}.h5md", workers=2, step=2)
        run("split", path, tmp_path / f"cut{number}.segments", "-n", 2, "--quiet")


def test_what_fails(outputs, tmp_path, adk):
    for path in outputs:
        words = ["convert", str(path)]
        assert main([*words, str(adk["dcd"])]) == 1  # it exists
        assert main([*words, str(tmp_path / "x.h5md"), "--select", "name CA"]) == 2
        assert main([*words, str(tmp_path / "x.zarr"), "-b", "1000"]) == 2
        assert main([*words, str(tmp_path / "x.segments"), "--segments", "7"]) == 2
        assert main(["analyze", "rmsd", str(path), "--start", "7"]) == 2


@pytest.mark.parametrize("words", [[], ["-w", 2]])
def test_analyze(outputs, adk, words):
    for path in outputs:
        run("analyze", "rmsd", path, "-s", adk["psf"], "--select", "name CA", "--quiet", *words)


def test_advise(adk, tmp_path):
    mdio.convert(adk["xtc"], tmp_path / "a.zarr", stop=20)
    words = ["--select", "name CA", "--ranks", 2, "--target", tmp_path, "--quiet", "--json"]
    run("advise", tmp_path / "a.zarr", "-s", adk["psf"], *words)
    assert open_files(tmp_path) == []


@pytest.fixture
def foreign(tmp_path):
    """A file of another program with two particle groups, the second of two chunks."""
    path = tmp_path / "other.h5"
    with h5py.File(path, "w") as file:
        file.create_group("h5md").attrs["version"] = [1, 1]
        for name, n_atoms in (("all", 5), ("water", 3)):
            position = file.create_group(f"particles/{name}/position")
            position.create_dataset(
                "value", (8, n_atoms, 3), "f4", chunks=(4, n_atoms, 3), fletcher32=True, fillvalue=1
            )[...] = 2
            position["value"].attrs["unit"] = "Angstrom"
            position["step"], position["time"] = range(8), [float(i) for i in range(8)]
            position["time"].attrs["unit"] = "ps"
        file["particles/wall/position"] = [[0.0, 0.0, 0.0]]  # for all times
        file.create_group("particles/cell/box").attrs["dimension"] = 3
    return path


def test_further_groups_of_others_are_told_and_checked(foreign, capsys):
    with mdio.open(foreign) as layout:
        assert layout.info.groups == {"water": 3}
    assert mdio.verify(foreign).ok
    with h5py.File(foreign) as file:
        chunk = file["particles/water/position/value"].id.get_chunk_info(1)
    data = bytearray(foreign.read_bytes())
    data[chunk.byte_offset + 5] ^= 1
    foreign.write_bytes(data)
    assert main(["verify", str(foreign)]) == 1
    printed = capsys.readouterr().out
    assert f"bad: group water, {foreign}: frames 4 to 7" in printed and "group all" not in printed
