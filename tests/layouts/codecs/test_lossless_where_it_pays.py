"""Where an output lies behind a network, floats in Zarr are compressed, and integers are small."""

import re
from pathlib import Path

import numpy as np
import pytest
import zarr
from MDAnalysisTests import datafiles
from numpy.testing import assert_array_equal
from suites.outputs import as_options

import mdio
from mdio.cli.main import main
from mdio.converters import storage
from mdio.core.files.store import is_network


@pytest.fixture
def lies_on(monkeypatch):
    def lie(file_system):
        monkeypatch.setattr(storage, "file_system_type", lambda _: file_system)

    return lie


def plan_of(source, folder, **options):
    return mdio.convert(source, folder / "a.zarr", stop=4, **as_options(options)).plan


@pytest.mark.parametrize("compression", [None, "auto"])
def test_on_a_network(adk, tmp_path, lies_on, compression):
    lies_on("nfs4")
    plan = plan_of(adk["dcd"], tmp_path, compression=compression)
    assert plan.compression == "lz4:5"
    (note,) = plan.notes
    assert "nfs4" in note
    assert "--compression none" in note
    stored = zarr.open(tmp_path / "a.zarr", mode="r")["particles/trajectory/position/value"]
    with mdio.open(adk["dcd"]) as source:
        assert_array_equal(stored[:], source.read(0, 4).positions)


def test_on_a_disk(adk, tmp_path, lies_on):
    lies_on("xfs")
    assert plan_of(adk["dcd"], tmp_path).notes == ()
    plan = plan_of(adk["dcd"], tmp_path, compression="auto", force=True)
    assert plan.compression is None
    assert plan.notes == ("compression: none, as xfs is not a network file system",)


def test_what_is_asked_for_is_done(adk, tmp_path, lies_on):
    lies_on("lustre")
    plan = plan_of(adk["dcd"], tmp_path, compression="none")
    assert (plan.compression, plan.notes) == (None, ())
    plan = plan_of(adk["dcd"], tmp_path, compression="zstd", force=True)
    assert (plan.compression, plan.notes) == ("zstd:3", ())


@pytest.mark.parametrize("precision", [None, 0.02])
@pytest.mark.parametrize("file_system", ["ceph", "store", "xfs"])
def test_integers_are_small_where_bytes_are_slow(adk, tmp_path, lies_on, precision, file_system):
    lies_on(file_system)
    plan = plan_of(adk["xtc"], tmp_path, precision=precision, compression="auto")
    named = "a store" if file_system == "store" else file_system
    if file_system == "xfs":
        assert plan.compression is None
        assert f"from {named}" in plan.notes[-1] and "--compression rigid" in plan.notes[-1]
    else:
        assert plan.compression == "rigid"
        assert f"as on {named}; --compression fast" in plan.notes[-1]
    for asked, stored in (("fast", "bitpack"), ("none", None), ("small", "rigid")):
        plan = plan_of(adk["xtc"], tmp_path, precision=precision, compression=asked, force=True)
        assert plan.compression == stored
        assert not any("times" in note or "bytes" in note for note in plan.notes)
    with mdio.open(adk["xtc"]) as source, mdio.open(tmp_path / "a.zarr") as made:
        assert made.info.compression == "rigid"
        error = np.abs(source.read(0, 4).positions - made.read(0, 4).positions).max()
    assert error <= (0.0 if precision is None else 0.01 + 1e-5)


def test_integers_for_selections_can_be_read_in_parts(adk, tmp_path, lies_on):
    lies_on("nfs4")
    plan = plan_of(adk["xtc"], tmp_path, pattern="selection")
    assert plan.compression == "rigid-seek" and "rigid-seek is used" in plan.notes[-1]
    with mdio.open(tmp_path / "a.zarr") as made:
        assert made.info.compression == "rigid-seek"


def test_integers_of_frames_read_one_by_one_are_bit_packed(adk, tmp_path, lies_on):
    lies_on("nfs4")
    plan = plan_of(adk["xtc"], tmp_path, pattern="frames")
    assert plan.compression is None
    assert "bitpack is used" in plan.notes[-1]


@pytest.fixture
def solvated():
    """Ten frames of a protein in water and ions, which bitpack leaves as large as they are."""
    return Path(datafiles.XTC)


def sizes(path, group):
    folder = path / "particles" / group / "position" / "value"
    return sum(file.stat().st_size for file in folder.rglob("c*") if file.is_file())


def test_water_is_never_larger_than_its_xtc(solvated, tmp_path, lies_on):
    lies_on("ext4")
    made = mdio.convert(solvated, tmp_path / "a.zarr")
    assert made.plan.compression == "rigid"
    fast = mdio.convert(solvated, tmp_path / "b.zarr", compression="fast")
    assert made.nbytes_out < 0.75 * made.nbytes_in < fast.nbytes_out
    note = made.plan.notes[-1]
    for path, name in ((tmp_path / "a.zarr", "rigid"), (tmp_path / "b.zarr", "bitpack")):
        with mdio.open(path) as output, mdio.open(solvated) as source:
            assert output.info.compression == name
            assert_array_equal(output.read(0, 10).positions, source.read(0, 10).positions)
        share = sizes(path, "trajectory") / made.nbytes_in
        assert min(abs(float(told) - share) for told in re.findall(r"\d\.\d", note)) < 0.06


def test_a_coarser_step_makes_nothing_larger(solvated, tmp_path, lies_on):
    lies_on("ext4")
    finer = mdio.convert(solvated, tmp_path / "a.zarr")
    for step in (0.02, 0.05, 0.1, 1.0):
        coarser = mdio.convert(solvated, tmp_path / f"{step}.zarr", precision=step)
        assert coarser.plan.compression == "rigid" and coarser.nbytes_out < finer.nbytes_out
        finer = coarser
    again = mdio.convert(tmp_path / "a.zarr", tmp_path / "again.zarr")
    assert "of the source's bytes" in again.plan.notes[-1]


@pytest.mark.parametrize("words", [["a.zarr"], ["a.h5md", "--compression", "bitpack"]])
def test_quiet_tells_what_is_lost_but_not_how_it_is_packed(
    solvated, tmp_path, capsys, monkeypatch, words
):
    monkeypatch.chdir(tmp_path)
    assert main(["convert", str(solvated), *words]) == 0
    assert "compression: " in capsys.readouterr().out
    assert main(["convert", str(solvated), *words, "--force", "-q"]) == 0
    assert main(["convert", "--ensemble", f"a={solvated}", "many.zarr", "-q"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["convert", str(datafiles.TRR), "b.xtc", "-q"]) == 0
    assert "left out" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["convert", "--help"])
    assert "fast is bitpack, and lz4 for floats" in " ".join(capsys.readouterr().out.split())


def test_each_group_is_packed_as_suits_it(solvated, tmp_path, lies_on):
    lies_on("ext4")
    out = tmp_path / "a.zarr"
    groups = {"few": np.arange(0, 3341, 90), "protein": np.arange(3341)}
    plan = mdio.convert(solvated, out, stop=6, groups=groups).plan
    packs = {array.group: array.compression or plan.compression for array in plan.arrays}
    assert packs == {"trajectory": "rigid", "few": "bitpack", "protein": "rigid"}
    whole = tmp_path / "whole.zarr"
    for added in (mdio.append(solvated, out), mdio.convert(solvated, whole, groups=groups)):
        assert added.n_frames == 10
    for group, name in packs.items():
        with mdio.open(out, group=group) as one, mdio.open(whole, group=group) as other:
            assert one.info.compression == other.info.compression == name
            assert_array_equal(one.read(0, 10).positions, other.read(0, 10).positions)
    shard = next((out / "particles/few/position/value").glob("c*"))
    shard.write_bytes(shard.read_bytes()[:-40] + bytes(40))
    assert not mdio.verify(out).ok
    mdio.repair(out, solvated)
    assert mdio.verify(out, against=solvated).ok


def test_atoms_that_are_moved_are_packed_as_suits_them(solvated, tmp_path, lies_on):
    lies_on("ext4")
    rounded = plan_of(solvated, tmp_path, pbc="atom", precision=0.01, force=True)
    assert rounded.compression == "rigid" and "of the source's bytes" in rounded.notes[0]
    plan = plan_of(solvated, tmp_path, pbc="atom", force=True)
    assert plan.compression is None and plan.precision is None
    (note,) = (note for note in plan.notes if note.startswith("compression: "))
    assert "unrounded floats are stored, which are 3.5 times as large; --precision 0.01" in note
    for asked in ({"precision": "none"}, {"compression": "zstd"}, {"precision": 0.01}):
        plan = plan_of(solvated, tmp_path, pbc="atom", force=True, **asked)
        assert not any("atoms are moved" in note for note in plan.notes)


def test_stored_trees_keep_how_they_are_packed(solvated, tmp_path, lies_on):
    lies_on("ext4")
    mdio.convert(solvated, tmp_path / "a.zarr", stop=4, compression="fast")
    lies_on("nfs4")
    mdio.append(solvated, tmp_path / "a.zarr")
    with mdio.open(tmp_path / "a.zarr") as output:
        assert (output.info.compression, output.info.n_frames) == ("bitpack", 10)


def test_words_for_floats(adk, tmp_path, lies_on):
    lies_on("xfs")
    for asked, stored in (("fast", "lz4:5"), ("small", "zstd:3")):
        assert plan_of(adk["dcd"], tmp_path, compression=asked, force=True).compression == stored


def test_other_layouts_do_not_ask(adk, tmp_path, lies_on):
    lies_on("ceph")
    for suffix in ("h5md", "dcd"):
        out = tmp_path / f"a.{suffix}"
        assert mdio.convert(adk["dcd"], out, stop=4, compression="auto").plan.notes == ()


def test_the_plan_says_why(adk, tmp_path, lies_on, capsys):
    lies_on("fuse.mfsmount")
    assert main(["convert", str(adk["dcd"]), str(tmp_path / "a.zarr"), "--dry-run"]) == 0
    plan = capsys.readouterr().out
    assert "compression  lz4:5" in plan
    assert "on fuse.mfsmount a process seldom gets" in plan


def test_file_systems_behind_a_network():
    for name in ("nfs", "nfs4", "lustre", "ceph", "beegfs", "gpfs", "fuse.sshfs", "cifs"):
        assert is_network(name)
    for name in ("ext4", "xfs", "btrfs", "tmpfs", "overlay", "fuse.fuse-overlayfs", "unknown"):
        assert not is_network(name)
