"""Trajectories side by side in one output: written, opened, analysed, written as files again."""

import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import MDAnalysis as mda
import numpy as np
import pytest
import xarray as xr
import zarr
from MDAnalysis.analysis import rms
from MDAnalysisTests.datafiles import DCD, PSF, XTC

import mdio
from mdio.cli.main import main
from mdio.converters.ensemble import convert_members
from mdio.core.errors import CorruptLayoutError, OutputError, PlanError, SourceError
from mdio.layouts.views.opening import ensemble_members

CA = "protein and name CA"
LENGTHS = {"replica01": 98, "replica02": 40, "other": 7}

pytestmark = pytest.mark.filterwarnings("ignore:DCDReader currently makes:DeprecationWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, adk):
    """Three trajectories of different lengths and times, in folders and in outputs."""
    folder = tmp_path_factory.mktemp("replicas")
    for number, (label, stop) in enumerate(LENGTHS.items()):
        (folder / label).mkdir()
        mdio.convert(adk["xtc"], folder / label / "md.xtc", start=number, stop=number + stop)
    sources = {label: folder / label / "md.xtc" for label in LENGTHS}
    for suffix in ("zarr", "h5md"):
        done = mdio.convert_ensemble(sources, folder / f"all.{suffix}", top=PSF)
        assert {label: one.n_frames for label, one in done.items()} == {**LENGTHS}
    return folder


@pytest.fixture(params=["zarr", "h5md"])
def whole(request, folder):
    """The three in one output."""
    return folder / f"all.{request.param}"


def run(*words, cwd=None):
    command = [sys.executable, "-m", "mdio.cli.main", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_each_is_what_its_file_is(whole, folder):
    for label in LENGTHS:
        want = mda.Universe(PSF, str(folder / label / "md.xtc"))
        found = mda.Universe(PSF, str(whole), group=label)
        assert len(found.trajectory) == len(want.trajectory)
        for ours, theirs in zip(found.trajectory, want.trajectory, strict=True):
            assert np.array_equal(ours.positions, theirs.positions)
            assert ours.time == pytest.approx(theirs.time)
        alone = mda.Universe(str(whole), group=label)
        assert np.array_equal(alone.atoms.names, want.atoms.names)


def test_topologies_of_groups_are_named_where_they_are(folder, tmp_path):
    sources = {label: folder / label / "md.xtc" for label in LENGTHS}
    done = mdio.convert_ensemble(sources, tmp_path / "all.zarr", top=PSF, groups={"ca": CA})
    for label, one in done.items():
        assert one.topologies == (str(tmp_path / f"all.zarr/{label}.ca.top.pdb"),)
        assert len(mda.Universe(*one.topologies).atoms) == 214


def test_other_programs_find_groups(folder):
    root = zarr.open_group(folder / "all.zarr", mode="r")
    assert sorted(root.group_keys()) == sorted(LENGTHS)
    values = root["replica02/particles/trajectory/position/value"]
    want = mda.Universe(PSF, str(folder / "replica02/md.xtc"))
    assert np.array_equal(values[3], want.trajectory[3].positions)
    assert {path.stem for path in (folder / "all.h5md").glob("*.h5md")} == {*LENGTHS}
    for label, n_frames in LENGTHS.items():
        want = mda.Universe(PSF, str(folder / label / "md.xtc"))
        with h5py.File(folder / f"all.h5md/{label}.h5md") as file:
            assert file["h5md"].attrs["version"].tolist() == [1, 1]
            position = file["particles/trajectory/position"]
            assert position["time"].shape == (n_frames,)
            assert np.array_equal(position["value"][3], want.trajectory[3].positions)


def test_rmsd_of_all_and_of_some(whole, folder):
    result = mdio.analyze(whole, kernel=mdio.RMSD(CA))
    table = result.to_dataframe()
    assert table.index.names == ["label", "frame", "time_ps"]
    for label in LENGTHS:
        universe = mda.Universe(PSF, str(folder / label / "md.xtc"))
        want = rms.RMSD(universe.select_atoms(CA)).run().results.rmsd
        np.testing.assert_allclose(table.loc[label].to_numpy()[:, 0], want[:, 2], atol=1e-4)
        assert np.array_equal(result.time[result.label == label], want[:, 1])
    some = mdio.analyze(whole, kernel=mdio.RMSD(CA), group="replica0*")
    assert set(some.label) == {"replica01", "replica02"}
    one = mdio.analyze(whole, kernel=mdio.RMSD(CA), group="other")
    assert one.n_frames == 7
    assert set(one.label) == {"other"}


def test_rows_of_atoms_and_of_lags_have_labels(whole):
    result = mdio.analyze(whole, kernel=mdio.RMSF("name CA"))
    assert result.values.shape == (3 * 214,)
    assert list(result.to_dataframe().index.names) == ["label", "row"]
    lags = mdio.analyze(whole, kernel=mdio.MSD("name CA"))
    assert lags.n_frames == lags.values.size == sum(LENGTHS.values())


def test_labels_are_in_the_index_of_a_map_reduce_too(whole):
    def lowest(block):
        z = block.positions[:, :, 2]
        return z.argmin(axis=1), np.arange(len(z)), {"z": z.min(axis=1)}

    def first(_key, frame, _time, _values):
        return {"frame": frame[0]}

    result = mdio.map_reduce(whole, select=CA, map=lowest, reduce=first)
    table = result.to_dataframe()
    assert table.index.names == ["label", "key"]
    assert list(table.columns) == ["frame"]
    kept = result.label == "replica02"
    assert kept.any()
    assert table.loc["replica02"].index.tolist() == result.keys[kept].tolist()
    one = (result.label[0], result.keys[0])
    assert table.loc[one, "frame"] == result.columns["frame"][0]


def test_xarray_opens_all_groups_as_one_tree(whole, folder):
    members = mdio.open_ensemble(whole)
    tree = xr.DataTree.from_dict({label: one.to_xarray() for label, one in members.items()})
    for label in LENGTHS:
        want = mda.Universe(PSF, str(folder / label / "md.xtc"))
        assert np.array_equal(tree[label].positions[-1], want.trajectory[-1].positions)
        assert np.array_equal(tree[label].resid, want.atoms.resids)
        assert (tree[label].resid + 200).max() == want.atoms.resids.max() + 200


@pytest.mark.filterwarnings("error")
def test_xarray_alone_opens_a_zarr_tree_as_one(folder):
    tree = xr.open_datatree(folder / "all.zarr", engine="zarr", consolidated=False)
    for label in LENGTHS:
        want = mdio.open(folder / "all.zarr", group=label)
        found = tree[f"{label}/particles/trajectory"]
        whole = want.read(0, want.info.n_frames)
        assert np.array_equal(found["position/value"], whole.positions)
        assert np.array_equal(found["position/time"], whole.time)
        assert found["position/value"].dims == ("frame", "atom", "axis")


def test_tables_have_labels(whole, tmp_path):
    for suffix in ("csv", "xvg", "npz"):
        done = run("analyze", "rgyr", whole, "-o", tmp_path / f"r.{suffix}", "-w", 2)
        assert done.returncode == 0, done.stderr
    lines = (tmp_path / "r.csv").read_text().splitlines()
    assert lines[0] == "label,frame,time_ps,rgyr_angstrom"
    assert [line.split(",")[0] for line in lines[1::98]][:2] == ["replica01", "replica02"]
    text = (tmp_path / "r.xvg").read_text()
    assert text.count("&\n") == 3
    assert '@ s2 legend "other rgyr_angstrom"' in text
    assert np.load(tmp_path / "r.npz")["label"].tolist().count("other") == 7


def count_frames(block):
    return np.zeros(block.n_frames), np.arange(block.n_frames), {"n": np.ones(block.n_frames)}


def total(key, frame, time, values):
    return {"n": values["n"].sum()}


def test_map_reduce_keeps_them_apart(whole):
    result = mdio.map_reduce(whole, map=count_frames, reduce=total)
    assert dict(zip(result.label, result.columns["n"], strict=True)) == LENGTHS
    some = mdio.map_reduce(whole, map=count_frames, reduce=total, group="rep*2")
    assert list(some.label) == ["replica02"]


def test_files_again(whole, folder, tmp_path):
    convert_members(whole, str(tmp_path / "{label}.xtc"))
    for label in LENGTHS:
        want = mda.Universe(PSF, str(folder / label / "md.xtc"))
        found = mda.Universe(PSF, str(tmp_path / f"{label}.xtc"))
        for ours, theirs in zip(found.trajectory, want.trajectory, strict=True):
            assert np.array_equal(ours.positions, theirs.positions)


@pytest.mark.parametrize("out", ["out.zarr", "out.h5md"])
def test_on_the_command_line(folder, out):
    sources = sorted(folder.glob("replica*/md.xtc"))
    done = run("convert", *sources, "last=other/md.xtc", out, "--ensemble", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f" frames of 3,341 atoms as {out[4:]}") == 3
    said = run("info", out, cwd=folder).stdout
    assert "an ensemble of 3 trajectories" in said
    assert "replica02    40 frames of 3,341 atoms" in said
    facts = json.loads(run("info", out, "--json", cwd=folder).stdout)
    assert list(facts["members"]) == ["replica01", "replica02", "last"]
    last = "out.zarr/last" if out == "out.zarr" else "out.h5md/last.h5md"
    assert run("info", last, cwd=folder).stdout.startswith(f"{last}\n")
    refused = run("convert", *sources, "again.zarr", "--ensemble", "--dry-run", cwd=folder)
    assert "--dry-run is not for --ensemble; plan one of them" in refused.stderr
    checked = run("verify", out, cwd=folder)
    assert checked.returncode == 0
    done = run("convert", out, f"back-{{label}}-{out}.dcd", "--ensemble", "-w", 2, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert len(list(folder.glob(f"back-*-{out}.dcd"))) == 3


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (["convert", "a=md.xtc", "b=md.xtc", "o.zarr"], "--ensemble"),
        (["verify", "md.xtc", "--against", "a=md.xtc"], "leave out the label"),
    ],
)
def test_labels_where_there_are_none(adk, tmp_path, monkeypatch, capsys, words, way_out):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "md.xtc").symlink_to(adk["xtc"])
    assert main(words) == 2
    told = capsys.readouterr().err
    assert "a=md.xtc: no such file, but md.xtc is one" in told and way_out in told


def test_damage_is_found_in_any(folder, tmp_path):
    sources = {label: folder / label / "md.xtc" for label in ("replica02", "other")}
    mdio.convert_ensemble(sources, tmp_path / "o.zarr")
    file = next((tmp_path / "o.zarr/other/particles/trajectory/position/value").glob("c.*"))
    damaged = bytearray(file.read_bytes())
    damaged[100] ^= 1
    file.write_bytes(damaged)
    result = mdio.verify(tmp_path / "o.zarr")
    assert not result.ok
    assert all(one.startswith("other: ") for one in result.bad)
    (tmp_path / "o.zarr/replica02/zarr.json").unlink()
    with pytest.raises(CorruptLayoutError, match="'replica02' of the ensemble is missing"):
        mdio.open(tmp_path / "o.zarr", group="other")


def test_what_is_wrong_with_files_of_an_ensemble(folder, tmp_path):
    """They are replaced, told of and missed together with the folder that holds them."""
    out = tmp_path / "o.h5md"
    mdio.convert_ensemble({"a": DCD, "b": DCD}, out, stop=5)
    with pytest.raises(OutputError, match="exists already"):
        mdio.convert_ensemble({"c": DCD}, out)
    mdio.convert_ensemble({"c": folder / "other/md.xtc", "d": DCD}, out, force=True)
    assert {path.name for path in out.iterdir()} == {"c.h5md", "d.h5md", "ensemble.json"}
    damaged = bytearray((out / "c.h5md").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (out / "c.h5md").write_bytes(damaged)
    result = mdio.verify(out)
    assert not result.ok
    assert all(one.startswith("c: ") for one in result.bad)
    (out / "c.h5md").unlink()
    with pytest.raises(CorruptLayoutError, match=r"'c' of the ensemble is missing \(.*c.h5md\)"):
        mdio.analyze(out, kernel="rgyr")
    with pytest.raises(PlanError, match=r"an ensemble of 3 trajectories .*group="):
        mdio.append(DCD, folder / "all.h5md")
    mdio.convert(DCD, out, force=True, stop=3)
    assert [path.name for path in tmp_path.iterdir()] == ["o.h5md"]
    assert mdio.open(out).info.n_frames == 3


@pytest.mark.parametrize("suffix", ["zarr", "h5md"])
@pytest.mark.parametrize("workers", [None, 2])
def test_each_trajectory_is_compared_with_its_own_source(folder, tmp_path, suffix, workers):
    files = {label: folder / label / "md.xtc" for label in ("replica01", "replica02", "other")}
    all_files = [*files.values()]
    result = mdio.verify(folder / f"all.{suffix}", all_files[::-1], workers=workers)
    assert result.ok and result.frames_compared == sum(LENGTHS[label] for label in files)
    assert result.allowed_diff_angstrom == 0.0
    result = mdio.verify(folder / f"all.{suffix}", all_files[:2])
    (problem,) = result.bad
    assert problem.startswith("other: its source is not among those")
    assert result.frames_compared == sum(LENGTHS[label] for label in [*files][:2])
    with pytest.raises(SourceError, match="none"):
        mdio.verify(folder / f"all.{suffix}", [*all_files, tmp_path / "none.xtc"])


def test_a_link_to_an_ensemble(folder, tmp_path):
    """The files of its trajectories lie beside the file that it leads to."""
    link = tmp_path / "link.h5md"
    link.symlink_to(folder / "all.h5md")
    assert mdio.open(link, group="other").info.n_frames == LENGTHS["other"]
    assert mdio.verify(link).ok


@pytest.mark.parametrize("suffix", ["zarr", "h5md"])
def test_all_are_opened_by_label(folder, suffix):
    layouts = mdio.open_ensemble(folder / f"all.{suffix}")
    assert {label: one.info.n_frames for label, one in layouts.items()} == LENGTHS
    (one,) = mdio.open_ensemble(folder / f"all.{suffix}", "oth*", verify=False).values()
    with mdio.open(folder / "other/md.xtc") as source:
        assert np.array_equal(one.read(0, 1).positions, source.read(0, 1).positions)
    with pytest.raises(PlanError, match=r"md\.xtc: not an ensemble of trajectories"):
        mdio.open_ensemble(folder / "other/md.xtc")


def test_what_does_not_go(folder, tmp_path):
    whole = folder / "all.zarr"
    with pytest.raises(PlanError, match=r"an ensemble of 3 trajectories \(replica01, ") as caught:
        mdio.open(whole)
    for way in (f"as {whole / 'replica01'}", "group='replica01'", "convert --ensemble"):
        assert way in str(caught.value)
    with pytest.raises(PlanError, match=r"no trajectory 'replica1' \(did you mean 'replica01'"):
        mdio.open(whole, group="replica1")
    with pytest.raises(
        PlanError, match="no trajectory of the ensemble is called 'x\\*'; its first is 'replica01'"
    ):
        mdio.analyze(whole, kernel="rmsd", group="x*")
    with pytest.raises(OutputError, match="exists already"):
        mdio.convert_ensemble({"a": DCD}, whole)
    for label in ("a/b", "zarr.json"):
        with pytest.raises(PlanError, match=f"cannot be called '{label}'"):
            mdio.convert_ensemble({label: DCD}, tmp_path / "o.zarr")
    with pytest.raises(PlanError, match="cannot be called 5"):
        mdio.convert_ensemble({5: DCD}, tmp_path / "o.zarr")
    with pytest.raises(PlanError, match="name the output NAME"):
        mdio.convert_ensemble({"a": DCD}, tmp_path / "o.segments")
    with pytest.raises(SourceError, match="b: 47681 atoms, but a has 3341"):
        mdio.convert_ensemble({"a": DCD, "b": XTC}, tmp_path / "o.zarr")
    assert not list(tmp_path.iterdir())
    with pytest.raises(PlanError, match="give an ensemble, and names with a place"):
        convert_members(DCD, str(tmp_path / "{label}.xtc"))


def test_replaced_by_force_with_what_is_kept(folder, tmp_path):
    out = tmp_path / "o.zarr"
    first = mdio.convert_ensemble({"a": DCD}, out, stop=5, select="name CA", top=PSF)
    assert first["a"].n_atoms == 214
    mdio.convert_ensemble({"b": DCD, "c": DCD}, out, force=True, groups={"ca": CA}, top=PSF)
    assert mdio.open(out, group="c/ca").info.n_atoms == 214
    alone = mdio.analyze(out, kernel="msd", group="c/ca")
    assert alone.label is None


def test_what_cannot_be_looked_at_is_named(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    (tmp_path / "a.zarr").mkdir()
    monkeypatch.setattr(Path, "is_dir", fail)
    with pytest.raises(SourceError, match=r"a\.zarr: cannot be read \(Stale file handle\)"):
        ensemble_members(tmp_path / "a.zarr")


def test_an_ensemble_without_one_of_its_files(tmp_path):
    mdio.convert_ensemble({"a": DCD, "b": DCD}, tmp_path / "all.h5md", stop=2)
    (tmp_path / "all.h5md" / "b.h5md").unlink()
    for function in (mdio.open, ensemble_members):
        with pytest.raises(CorruptLayoutError, match=r"b\.h5md") as caught:
            function(tmp_path / "all.h5md")
        assert caught.value.__cause__ is not caught.value


def test_a_file_that_can_no_longer_be_looked_at_is_named(tmp_path, monkeypatch):
    mdio.convert(DCD, tmp_path / "a.h5md", stop=2)
    is_dir = Path.is_dir

    def fail_later(path):
        if path.suffix == ".h5md" and next(n_left) <= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return is_dir(path)

    for n_before in range(4):
        n_left = itertools.count(n_before, -1)
        with monkeypatch.context() as broken:
            broken.setattr(Path, "is_dir", fail_later)
            with pytest.raises(SourceError, match=r"a\.h5md: cannot be "):
                mdio.open(tmp_path / "a.h5md")


def test_an_ensemble_of_an_older_version(tmp_path):
    """A file of links beside a folder: it is read and verified, and not replaced."""
    golden = Path(__file__).parents[2] / "golden" / "h5md"
    for name in ("v1-ensemble.h5md", "v1-ensemble.h5md.parts"):
        copy = shutil.copytree if (golden / name).is_dir() else shutil.copy
        copy(golden / name, tmp_path / name)
    out = tmp_path / "v1-ensemble.h5md"
    atoms = mda.Universe(PSF).select_atoms("name CA and resid 1:10").indices
    for label in ("one", "two"):
        found = mda.Universe(str(out), group=label)
        for ours, theirs in zip(
            found.trajectory, mda.Universe(PSF, DCD).trajectory[:5], strict=True
        ):
            assert np.array_equal(ours.positions, theirs.positions[atoms])
    assert mdio.verify(out).ok
    with pytest.raises(OutputError, match="exists already"):
        mdio.convert_ensemble({"a": DCD}, out)
    with pytest.raises(OutputError, match=r"v1-ensemble\.h5md\.parts.* delete both"):
        mdio.convert_ensemble({"a": DCD}, out, stop=3, force=True)
    assert mdio.verify(out).ok


@pytest.mark.parametrize("function", [mdio.open, mdio.analyze, mdio.advise])
def test_a_dict_of_trajectories_where_one_is_expected(function):
    kernel = {"analyze": {"kernel": "rgyr"}, "advise": {"analysis": "rgyr"}}
    with pytest.raises(PlanError, match=r"by label \(a, b\).*mdio.convert_ensemble"):
        function({"a": DCD, "b": DCD}, **kernel.get(function.__name__, {}))


def test_verifying_counts_the_units_of_all(tmp_path):
    out = tmp_path / "both.zarr"
    mdio.convert_ensemble({"a": DCD, "b": DCD}, out, step=20)
    members = [mdio.verify(member).units for member in ensemble_members(out).values()]
    assert mdio.verify(out).units == sum(members) > members[0] > 0
