"""What conversions publish: looked at first, with its topologies, over nothing of others."""

import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, PSF, TPR, XTC, PDB_conect
from suites.outputs import as_options, contents

import mdio
from mdio.cli.main import main
from mdio.converters.convert import prepare
from mdio.converters.options import ConversionOptions
from mdio.converters.strategies import conversion
from mdio.converters.strategies.job import _bonds_of_pdb
from mdio.core.errors import OutputError
from mdio.core.files.checks import manifest_in
from mdio.readers import reader as formats

GOLDEN = Path(__file__).parents[1] / "golden"


def names_in(folder):
    return sorted(p.name for p in folder.iterdir())


@pytest.mark.parametrize("to", [None, "segments", "zarr"])
def test_the_topology_is_not_replaced(adk, tmp_path, to):
    top = tmp_path / "adk.xtc"  # a name that is no topology's, so that it can be an output
    top.write_bytes(adk["psf"].read_bytes())
    link = tmp_path / "link.psf"
    link.symlink_to(top)
    with pytest.raises(OutputError, match="the source"):
        mdio.convert(adk["dcd"], top, top=link, to=to, force=True, stop=5)
    assert top.read_bytes() == adk["psf"].read_bytes()


def test_a_topology_beside_an_output_is_not_replaced_when_it_is_read(adk, tmp_path):
    mdio.convert(adk["dcd"], tmp_path / "a.zarr", top=adk["psf"], select="protein", stop=5)
    top = tmp_path / "a.top.pdb"
    before = top.read_bytes()
    options = {"top": top, "select": "name CA", "force": True}
    done = mdio.convert(tmp_path / "a.zarr", tmp_path / "a.xtc", **options)
    assert done.topologies == (str(tmp_path / "a.xtc.top.pdb"),)
    with pytest.raises(OutputError, match=r"a\.top\.pdb.*the source"):
        mdio.convert(tmp_path / "a.zarr", top, top=top, force=True, start=0, stop=1)
    assert top.read_bytes() == before


def test_outputs_that_share_their_stem(adk, tmp_path):
    """They share a topology if it is the same, and leave one another theirs if it is not."""
    words = {"top": adk["psf"], "groups": {"ca": "name CA"}, "stop": 5}
    first = mdio.convert(adk["dcd"], tmp_path / "md.zarr", **words)
    assert [Path(p).name for p in first.topologies] == ["md.ca.top.pdb"]
    mdio.convert(adk["dcd"], tmp_path / "md.h5md", **words)
    assert names_in(tmp_path) == ["md.ca.top.pdb", "md.h5md", "md.zarr"]
    before = (tmp_path / "md.ca.top.pdb").read_bytes()
    words["groups"] = {"ca": "name CA and resid 1:20"}
    other = mdio.convert(adk["dcd"], tmp_path / "md.h5md", force=True, **words)
    assert [Path(p).name for p in other.topologies] == ["md.h5md.ca.top.pdb"]
    assert (tmp_path / "md.ca.top.pdb").read_bytes() == before
    words["groups"] = {"ca": "name CA and resid 1:30"}
    mdio.convert(adk["dcd"], tmp_path / "md.h5md", force=True, **words)
    assert (tmp_path / "md.h5md.ca.top.pdb").read_text().count("ATOM  ") == 30
    assert (tmp_path / "md.ca.top.pdb").read_bytes() == before


def test_the_only_output_of_its_stem_replaces_its_topology(adk, tmp_path):
    source = tmp_path / "md.dcd"
    source.write_bytes(adk["dcd"].read_bytes())
    for n_atoms in (20, 30):
        words = {"top": adk["psf"], "select": f"name CA and resid 1:{n_atoms}"}
        mdio.convert(source, tmp_path / "md.zarr", force=True, stop=5, **words)
        assert names_in(tmp_path) == ["md.dcd", "md.top.pdb", "md.zarr"]
        assert (tmp_path / "md.top.pdb").read_text().count("ATOM  ") == n_atoms


@pytest.mark.parametrize(
    ("name", "chosen"), [("md.zarr", "select"), ("md.xtc", "select"), ("md.h5md", "groups")]
)
def test_force_replaces_no_topology_of_the_users(adk, tmp_path, name, chosen):
    """Neither beside the first output, nor where another name was taken to avoid it."""
    ending = ".top.pdb" if chosen == "select" else ".ca.top.pdb"
    own, avoiding = tmp_path / f"md{ending}", tmp_path / f"{name}{ending}"
    words = {"top": adk["psf"], "stop": 5, "force": True}
    mdio.convert(adk["dcd"], tmp_path / name, stop=5)
    own.write_text("TITLE     mine\n")
    for n_atoms in (20, 30):
        selection = f"name CA and resid 1:{n_atoms}"
        words[chosen] = selection if chosen == "select" else {"ca": selection}
        done = mdio.convert(adk["dcd"], tmp_path / name, **words)
        assert done.topologies == (str(avoiding),)
        assert own.read_text() == "TITLE     mine\n"
        assert avoiding.read_text().count("ATOM  ") == n_atoms
    avoiding.write_text("TITLE     mine, too\n")
    before = contents(tmp_path / name)
    with pytest.raises(OutputError, match="not a topology that mdio wrote"):
        mdio.convert(adk["dcd"], tmp_path / name, **words)
    assert avoiding.read_text() == "TITLE     mine, too\n" and contents(tmp_path / name) == before


def test_a_topology_in_gro_is_replaced_by_that_of_its_output(adk, tmp_path):
    """Too large for a PDB file; the title says that mdio wrote it, there too."""
    universe = mda.Universe(str(adk["psf"]), str(adk["dcd"]))
    universe.atoms.positions += 20_000
    universe.atoms.write(str(tmp_path / "far.ncdf"))
    for n_atoms in (20, 30):
        words = {"top": adk["psf"], "select": f"name CA and resid 1:{n_atoms}", "force": True}
        mdio.convert(tmp_path / "far.ncdf", tmp_path / "md.zarr", **words)
        assert names_in(tmp_path) == ["far.ncdf", "md.top.gro", "md.zarr"]
        assert len(mda.Universe(str(tmp_path / "md.top.gro")).atoms) == n_atoms


@pytest.mark.parametrize(
    ("name", "options", "share"),
    [("a.xtc", {}, 1), ("a.xtc", {"select": "name CA"}, 0.5), ("a.zarr", {}, 0.5)],
)
def test_no_room_for_integers_of_an_xtc(adk, tmp_path, monkeypatch, name, options, share):
    """Their bytes are known beforehand by those of the source: refused is what surely is full."""
    out = tmp_path / name
    needed = share * mdio.convert(adk["xtc"], out, top=adk["psf"], **options).nbytes_out
    for free, fits in ((1.3 * needed, True), (0.7 * needed, False)):
        room = shutil._ntuple_diskusage(10, 5, free)
        monkeypatch.setattr(shutil, "disk_usage", lambda path, room=room: room)
        with nullcontext() if fits else pytest.raises(OutputError, match="are free"):
            mdio.convert(adk["xtc"], out, top=adk["psf"], force=True, **options)


def cut(path):
    """Spoil the largest file of an output."""
    files = [path, *path.rglob("*")] if path.is_dir() else [path]
    largest = max((p for p in files if p.is_file()), key=lambda p: p.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.zarr", {}),
        ("a.h5md", {}),
        ("a.segments", {}),
        ("a.segments", {"container": "dcd"}),
        ("a.xtc", {}),
        ("a.dcd", {}),
        ("a.trr", {}),
        ("a.ncdf", {}),
    ],
    ids=str,
)
def test_what_does_not_read_back_is_not_published(adk, tmp_path, monkeypatch, name, options):
    out = tmp_path / name
    mdio.convert(adk["xtc"], out, stop=10, **as_options(options))
    before, names = contents(out), names_in(tmp_path)
    looked = []

    def spoilt(path, *more):
        looked.append(path)
        cut(path)
        read_back(path, *more)

    read_back = conversion.read_back
    monkeypatch.setattr(conversion, "read_back", spoilt)
    with pytest.raises(OutputError, match="does not read back as it was written") as caught:
        mdio.convert(adk["xtc"], out, force=True, **as_options(options))
    assert ".mdio-" not in str(caught.value) and ".look-" not in str(caught.value)
    assert str(out) in str(caught.value) and len(looked) == 1
    assert contents(out) == before and names_in(tmp_path) == names
    monkeypatch.undo()
    mdio.convert(adk["xtc"], out, force=True, **as_options(options))
    assert names_in(tmp_path) == names
    with mdio.open(out) as layout:
        assert layout.info.n_frames == 98


def test_another_number_of_frames_is_not_published(adk, tmp_path):
    layout = mdio.open(adk["xtc"])
    result = mdio.convert(adk["xtc"], tmp_path / "a.zarr", stop=10)
    with pytest.raises(OutputError, match="10 frames of 3341 atoms in it"):
        conversion.read_back(tmp_path / "a.zarr", result.plan.replace(n_frames=11))
    layout.close()


@pytest.mark.parametrize("name", ["a.segments", "a.zarr"])
def test_what_mdio_wrote_is_known_by_its_marks(adk, tmp_path, name):
    mdio.convert(adk["xtc"], tmp_path / name, stop=5)
    assert manifest_in(tmp_path / name) is not None


def test_old_outputs_are_known_by_their_marks():
    folders = list((GOLDEN / "zarr").glob("*.zarr"))
    assert folders and all(manifest_in(folder) is not None for folder in folders)


def test_a_store_of_others_is_not_replaced(adk, tmp_path):
    zarr = pytest.importorskip("zarr")
    zarr.create_group(tmp_path / "a.zarr").create_array("x", data=np.arange(3))
    with pytest.raises(OutputError, match="not an output of mdio"):
        mdio.convert(adk["xtc"], tmp_path / "a.zarr", force=True)
    assert zarr.open_group(tmp_path / "a.zarr", mode="r")["x"][2] == 2


def test_segments_are_claimed_only_if_mdio_wrote_them(adk, tmp_path):
    (tmp_path / "app.segments").mkdir()
    (tmp_path / "app.segments" / "manifest.json").write_text('{"name": "app"}')
    mdio.convert(adk["xtc"], tmp_path / "a.segments")
    hint = formats.SegmentsReader._format_hint
    assert hint(str(tmp_path / "a.segments")) and not hint(tmp_path / "app.segments")
    assert not hint(tmp_path / "nothing") and not hint(adk["xtc"])


@pytest.mark.parametrize("force", [False, True])
def test_a_pipe_is_not_waited_for(adk, tmp_path, force):
    os.mkfifo(tmp_path / "a.h5md")
    with pytest.raises(OutputError, match=r"neither a file|exists already"):
        mdio.convert(adk["xtc"], tmp_path / "a.h5md", force=force)


def test_a_pipe_for_an_index(adk, tmp_path):
    source = tmp_path / "a.xtc"
    source.write_bytes(adk["xtc"].read_bytes())
    os.mkfifo(tmp_path / ".a.xtc.mdio-index")
    with mdio.open(source) as layout:
        assert layout.info.n_frames == 98
    assert (tmp_path / ".a.xtc.mdio-index").is_fifo()


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_an_index_is_as_readable_as_the_umask_says(adk, tmp_path, umask, mode):
    source = tmp_path / "a.xtc"
    source.write_bytes(adk["xtc"].read_bytes())
    before = os.umask(umask)
    try:
        with mdio.open(source) as layout:
            assert layout.info.n_frames == 98
    finally:
        os.umask(before)
    assert (tmp_path / ".a.xtc.mdio-index").stat().st_mode & 0o777 == mode


def test_a_topology_beside_an_output_has_its_first_frame(tmp_path):
    """As it was moved: people look at both together, and take it for a reference."""
    from MDAnalysisTests.datafiles import TPR, XTC

    moved = {"pbc": "whole", "center": "protein"}
    words = {"top": TPR, "select": "protein"}
    fitted = mdio.Selection(**moved, fit="rot+trans")
    mdio.convert(XTC, tmp_path / "a.dcd", start=4, stop=6, selection=fitted, **words)
    mdio.convert(XTC, tmp_path / "whole.dcd", stop=1, selection=mdio.Selection(**moved), **words)
    mdio.convert(XTC, tmp_path / "plain.dcd", stop=1, **words)
    for name in ("a", "whole", "plain"):
        alone = mda.Universe(str(tmp_path / f"{name}.top.pdb"))
        both = mda.Universe(str(tmp_path / f"{name}.top.pdb"), str(tmp_path / f"{name}.dcd"))
        np.testing.assert_allclose(alone.atoms.positions, both.atoms.positions, atol=6e-4)
        np.testing.assert_allclose(alone.dimensions, both.dimensions, atol=6e-3)


@pytest.mark.parametrize("suffix", ["zarr", "segments"])
def test_what_others_put_into_an_output_is_not_lost(adk, tmp_path, suffix):
    out = tmp_path / f"a.{suffix}"
    mdio.convert(adk["xtc"], out, stop=50)
    (out / "notes.txt").write_text("mine")
    for change in (
        lambda: mdio.append(adk["xtc"], out),
        lambda: mdio.convert(adk["xtc"], out, force=True),
    ):
        with pytest.raises(OutputError, match=r"notes\.txt.* would be lost"):
            change()
    with pytest.raises(OutputError, match="lies inside"):
        mdio.convert(adk["xtc"], out / "b.zarr")
    assert (out / "notes.txt").read_text() == "mine"
    (out / "notes.txt").unlink()
    assert mdio.append(adk["xtc"], out).n_frames == 98


def test_a_second_run_is_told_before_it_works(adk, tmp_path):
    out = tmp_path / "a.zarr"

    def second(n_frames, nbytes):
        with pytest.raises(OutputError, match=r"another run .* is writing it"):
            mdio.convert(adk["xtc"], out)

    assert mdio.convert(adk["xtc"], out, progress=second).n_frames == 98


def test_an_error_of_the_callers_function_keeps_what_was_converted(adk, tmp_path):
    calls = []

    def fail(n_frames, nbytes):
        calls.append(n_frames)
        if len(calls) == 3:
            raise ZeroDivisionError

    out, storage = tmp_path / "a.segments", mdio.Storage(segments=7, container="dcd")
    with pytest.raises(ZeroDivisionError):
        mdio.convert(adk["xtc"], out, storage=storage, progress=fail)
    result = mdio.convert(adk["xtc"], out, storage=storage, resume=True)
    assert any("taken from an earlier run" in note for note in result.plan.notes)


PROGRAM = """
import os, sys, mdio
calls = []
def end(n_frames, nbytes):
    calls.append(n_frames)
    if len(calls) == 2:
        os._exit(9)
options = {"groups": {"ca": "name CA"}, "storage": mdio.Storage(chunk_frames=2)}
mdio.convert(sys.argv[1], "md.zarr", top=sys.argv[2], progress=end, **options)
"""


def test_a_topology_that_another_output_has_brought_leaves_nothing_behind(adk, tmp_path):
    words = [sys.executable, "-c", PROGRAM, str(adk["dcd"]), str(adk["psf"])]
    assert subprocess.run(words, cwd=tmp_path, check=False).returncode == 9
    assert any(name.startswith(".md.ca.top.pdb") for name in names_in(tmp_path))
    options = {"top": adk["psf"], "groups": {"ca": "name CA"}}
    mdio.convert(adk["dcd"], tmp_path / "md.h5md", **options)
    options["storage"] = mdio.Storage(chunk_frames=2)
    mdio.convert(adk["dcd"], tmp_path / "md.zarr", resume=True, **options)
    assert names_in(tmp_path) == ["md.ca.top.pdb", "md.h5md", "md.zarr"]


def test_the_last_of_several_parts_is_not_replaced(adk, tmp_path, capsys):
    parts = [tmp_path / f"part{number}.xtc" for number in range(3)]
    for part in parts:
        shutil.copy(adk["xtc"], part)
    before = parts[-1].stat()
    for words in ([], ["--force"], ["--overlap", "keep-all", "--force"]):
        assert main(["convert", *map(str, parts), *words]) != 0
        told = capsys.readouterr().err
        assert "part2.xtc" in told and "last name" in told and "--force" not in told
    assert parts[-1].stat() == before
    assert main(["convert", *map(str, parts), "--overlap", "keep-all", "--dry-run"]) == 0
    mdio.convert(parts[:2], parts[-1], overlap="keep-all", force=True)  # it is named by itself
    for word, part in zip(("a", "b"), parts, strict=False):
        mdio.convert(part, tmp_path / f"{word}.zarr")
    assert main(["convert", str(tmp_path / "a.zarr"), str(tmp_path / "b.zarr")]) != 0
    assert "last name" in capsys.readouterr().err


def _with_bonds(pairs, guessed=False, n_atoms=8):
    universe = mda.Universe.empty(n_atoms, trajectory=True)
    universe.add_TopologyAttr("bonds", [])
    universe.add_bonds(pairs, guessed=guessed)
    return universe.atoms


@pytest.mark.parametrize(
    "choose",
    [
        lambda: mda.Universe(PSF, DCD).atoms,
        lambda: mda.Universe(PSF, DCD).select_atoms("protein and resid 3:9"),
        lambda: mda.Universe(PSF, DCD).select_atoms("name CA"),
        lambda: mda.Universe(PSF, DCD).atoms[[5, 4, 0, 9, 7, 8, 1]],
        lambda: mda.Universe(TPR, XTC).select_atoms("resid 300 to 310 and name OW HW1"),
        lambda: mda.Universe(PDB_conect).atoms,
        lambda: _with_bonds([]),
        lambda: _with_bonds([(0, 1), (0, 2)], guessed=[True, False]),
        lambda: _with_bonds([(0, 1), (99_997, 99_999)], n_atoms=100_001)[1:],
        lambda: _with_bonds([(0, 1), (99_997, 99_999)], n_atoms=100_001),
    ],
)
def test_bonds_of_a_topology_beside_are_those_that_mdanalysis_writes(choose, tmp_path):
    atoms = choose()
    atoms.write(str(tmp_path / "theirs.pdb"))
    theirs = (tmp_path / "theirs.pdb").read_bytes()
    found = b"".join(one for one in theirs.splitlines(True) if one.startswith(b"CONECT"))
    assert _bonds_of_pdb(atoms) == found
    if found:
        assert theirs.endswith(found + b"END\n")


@pytest.mark.parametrize("last, is_told", [(99_998, False), (99_999, True)])
def test_bonds_without_room_in_pdb_are_told(last, is_told, tmp_path):
    atoms = _with_bonds([(0, 1), (99_997, last)], n_atoms=100_000)
    with mda.Writer(str(tmp_path / "md.dcd"), n_atoms=100_000) as writer:
        writer.write(atoms)
    for out, select in (("md.segments", "all"), ("md.pdb", None)):
        options = ConversionOptions.of(top=atoms.universe, select=select)
        notes = prepare(tmp_path / "md.dcd", tmp_path / out, options).plan.notes
        assert any("no bonds" in note for note in notes) == is_told
    assert (b"CONECT" in _bonds_of_pdb(atoms)) != is_told
