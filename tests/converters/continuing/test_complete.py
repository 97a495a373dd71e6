"""--resume of what is complete: said to be so if it is the same, an error if it is not."""

import os
import shutil
from contextlib import suppress

import pytest
from suites.outputs import as_options

import mdio
from mdio.cli.main import main
from mdio.converters.strategies.conversion import Conversion
from mdio.core.errors import OutputError
from mdio.core.files import publish

MADE = {
    "a.zarr": {},
    "b.h5md": {"contiguous": True},
    "c.segments": {"segments": 5, "container": "xtc"},
}


@pytest.fixture
def source(adk, tmp_path):
    shutil.copy(adk["dcd"], tmp_path / "adk.dcd")
    return tmp_path / "adk.dcd"


def state(path):
    return path.stat().st_ino, path.stat().st_mtime_ns


@pytest.mark.parametrize("name", MADE)
def test_the_same_once_more(source, tmp_path, name):
    out = tmp_path / name
    assert not mdio.convert(source, out, resume=True, **as_options(MADE[name])).found_complete
    before = state(out)
    found = mdio.convert(source, out, resume=True, **as_options(MADE[name] | {"workers": 1}))
    assert found.found_complete and found.n_frames == 98 and found.nbytes_out > 0
    assert state(out) == before
    assert not mdio.convert(
        source, out, resume=True, force=True, **as_options(MADE[name])
    ).found_complete


def test_the_command_ends_with_0(source, adk, tmp_path, capsys):
    command = ["convert", str(source), str(tmp_path / "a.zarr"), "-s", str(adk["psf"]), "--resume"]
    command += ["--select", "name CA"]
    assert main(command) == 0
    capsys.readouterr()
    assert main(command) == 0
    assert "a.zarr: already complete, nothing was written" in capsys.readouterr().out
    (tmp_path / "a.top.pdb").write_text("END")
    assert main(command) == 1


def test_split_says_so_too(source, tmp_path, capsys):
    command = ["split", str(source), str(tmp_path / "a.segments"), "-n", "4", "--resume"]
    assert main(command) == 0
    assert "98 frames in 4 segments" in capsys.readouterr().out
    assert main(command) == 0
    assert "a.segments: already complete, nothing was written" in capsys.readouterr().out


@pytest.mark.parametrize(
    "other",
    [
        {"stop": 5},
        {"select": "name CA"},
        {"groups": {"ca": "name CB"}},
        {"precision": 0.1},
        {"compression": "zstd"},
        {"chunk_frames": 3},
        {"stripe_nbytes": 1 << 22},
        {"topology": False},
        {"pbc": "whole"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_another_one_is_an_error(adk, tmp_path, other):
    usual = {"top": adk["psf"], "groups": {"ca": "name CA"}, "resume": True}
    mdio.convert(adk["xtc"], tmp_path / "a.zarr", **usual)
    named = rf"exists already, and was made differently \({next(iter(other))}\b.* now\)"
    with pytest.raises(OutputError, match=named):
        mdio.convert(adk["xtc"], tmp_path / "a.zarr", **as_options(usual | other))


@pytest.mark.parametrize("is_whole", [True, False])
def test_of_a_source_that_was_touched_it_is_an_error(source, tmp_path, monkeypatch, is_whole):
    out = tmp_path / "a.zarr"
    with monkeypatch.context() as patch:
        if not is_whole:
            patch.setattr(
                Conversion, "_check_output", lambda *_: (_ for _ in ()).throw(MemoryError)
            )
        with suppress(MemoryError):
            mdio.convert(source, out)
    assert out.exists() == is_whole
    at = source.stat().st_mtime_ns
    os.utime(source, ns=(at, at + 10**9))
    told = "exists already" if is_whole else "left unfinished"
    with pytest.raises(OutputError, match=rf"{told}.*adk.dcd: last changed 20.* now\)"):
        mdio.convert(source, out, resume=True)
    os.utime(source, ns=(at, at))
    assert mdio.convert(source, out, resume=True).found_complete == is_whole


@pytest.mark.parametrize("name", MADE)
def test_of_a_source_that_has_grown_append_is_advised(adk, tmp_path, name):
    source, out = tmp_path / "live.xtc", tmp_path / name
    mdio.convert(adk["xtc"], source, stop=5)
    mdio.convert(source, out, resume=True)
    mdio.convert(adk["xtc"], source, force=True)
    with pytest.raises(OutputError, match=f"has grown since: `mdio append {source} {out}`"):
        mdio.convert(source, out, resume=True)
    with pytest.raises(OutputError, match=r"made differently \(stop: not given then, 9 now"):
        mdio.convert(source, out, stop=9, resume=True)
    mdio.append(source, out)
    assert mdio.convert(source, out, resume=True).found_complete
    other = {"segments": 2} if name == "c.segments" else {"chunk_frames": 9}
    with pytest.raises(
        OutputError, match=rf"made differently \({next(iter(other))}: not given then"
    ):
        mdio.convert(source, out, resume=True, **as_options(other))


def test_of_an_output_that_frames_were_added_to_append_is_advised(adk, tmp_path):
    parts, out = [tmp_path / "1.xtc", tmp_path / "2.xtc"], tmp_path / "a.zarr"
    mdio.convert(adk["xtc"], parts[0], stop=60)
    mdio.convert(adk["xtc"], parts[1], start=60)
    mdio.convert(parts[0], out)
    mdio.append(parts[1], out)
    for given in (parts[:1], parts):
        names = " ".join(map(str, given))
        advice = f"exists already, and frames were added to it since: `mdio append {names} {out}`"
        with pytest.raises(OutputError, match=advice):
            mdio.convert(given, out, resume=True)


def test_what_is_no_trajectory_is_an_error(source, tmp_path):
    (tmp_path / "c.h5md").write_text("notes")
    with pytest.raises(OutputError, match="exists already"):
        mdio.convert(source, tmp_path / "c.h5md", resume=True)


@pytest.mark.parametrize("name", ["a.xtc", "a.dcd", "a.trr", "a.ncdf"])
def test_native_files_are_compared(source, tmp_path, name):
    """They do not record how they were made."""
    out = tmp_path / name
    mdio.convert(source, out, start=2, resume=True)
    before = state(out)
    assert mdio.convert(source, out, start=2, resume=True).found_complete
    with mdio.open(source) as layout:
        block = layout.read(0, 98)
    block.positions[70, 3] += 0.5
    with mdio.Writer(tmp_path / "b.zarr") as writer:
        writer.write_block(block.positions, box=block.box, time=block.time, step=block.step)
    others = [(source, {"start": 1, "stop": 97}), (source, {"start": 3})]
    others.append((tmp_path / "b.zarr", {"start": 2}))
    others += [(source, {"start": 2, "precision": 0.1})] if name == "a.xtc" else []
    for other, options in others:
        with pytest.raises(OutputError, match="exists already"):
            mdio.convert(other, out, resume=True, **options)
    with pytest.raises(OutputError, match="is the source"):
        mdio.convert(out, out, resume=True)
    assert state(out) == before


@pytest.mark.parametrize("resume", [False, True])
def test_what_a_run_left_that_was_to_replace_it_is_told(adk, tmp_path, monkeypatch, resume):
    out, options = tmp_path / "a.zarr", as_options({"chunk_frames": 7})
    mdio.convert(adk["dcd"], out, stop=5)
    stored = []

    def interrupt(conversion, writer, record):
        former(conversion, writer, record)
        stored.append(record)
        if len(stored) == 2:
            raise KeyboardInterrupt

    former = Conversion._record
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Conversion, "_record", interrupt)
        mdio.convert(adk["dcd"], out, force=True, **options)
    kept = f"{sum(record.stop - record.start for record in stored)} of 98 frames .* are kept in"
    with pytest.raises(OutputError, match=f"exists already; .*{kept} .*use --force --resume"):
        mdio.convert(adk["dcd"], out, resume=resume, **options)
    mdio.convert(adk["dcd"], out, resume=True, force=True, **options)
    assert mdio.verify(out, adk["dcd"]).ok


@pytest.mark.parametrize("name", ["a.zarr", "a.h5md"])
def test_what_a_run_left_that_was_killed_at_its_end_is_removed(adk, tmp_path, name):
    """The former output among it, which may be large."""
    out = tmp_path / name
    mdio.convert(adk["dcd"], out, stop=5)
    if (child := os.fork()) == 0:

        def killed(*words, **more):
            rename_into_place(*words, **more)
            os._exit(9)

        rename_into_place, publish.rename_into_place = publish.rename_into_place, killed
        with suppress(BaseException):
            mdio.convert(adk["dcd"], out, force=True)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert len([*tmp_path.iterdir()]) > 1
    assert mdio.convert(adk["dcd"], out, resume=True).found_complete
    assert [*tmp_path.iterdir()] == [out]
