"""A layout in a package of its own works in every command, and keeps the contracts."""

import json
import os
import pickle
import subprocess
import sys
import tomllib

import MDAnalysis as mda
import numpy as np
import pytest
from plug_in import FOLDER, install
from suites.quick_advice import quickly

import mdio
from mdio.core.errors import PlanError, SourceError, UnknownLayoutError
from mdio.core.files.reading import reads
from mdio.layouts import records, registry
from mdio.testing.reading import LayoutReadingTests, ReadingCase, oracle_from_mdanalysis
from mdio.testing.writing import LayoutWriterTests, WritingCase


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """Put the plug-in, or what else is said to be one, on the path."""

    def put(*words):
        monkeypatch.syspath_prepend(install(tmp_path / "site", *words))
        registry.plug_ins.cache_clear()

    yield put
    registry.plug_ins.cache_clear()


@pytest.fixture
def lines(on_path):
    on_path()
    return __import__("mdio_lines")


@pytest.fixture(scope="module")
def oracle(adk):
    return oracle_from_mdanalysis(adk["psf"], adk["dcd"])


@pytest.fixture
def source(adk, tmp_path):
    """A small native trajectory with all that lines can hold."""
    mdio.convert(adk["xtc"], tmp_path / "a.trr", stop=5, top=adk["psf"], select="resid 1:3")
    return tmp_path / "a.trr"


class TestReading(LayoutReadingTests):
    @pytest.fixture
    def case(self, lines, source, tmp_path):
        mdio.convert(source, tmp_path / "a.lines")
        oracle = oracle_from_mdanalysis(None, source, n_atoms=mdio.open(source).info.n_atoms)
        return ReadingCase(lines.LinesLayout, tmp_path / "a.lines", oracle)


class TestWriting(LayoutWriterTests):
    @pytest.fixture
    def case(self, lines):
        return WritingCase(lines.LinesWriter, lines.LinesLayout, "a.lines", piece_frames=3)


def test_every_command(adk, tmp_path):
    install(tmp_path / "site")
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}

    def run(*words):
        command = [sys.executable, "-m", "mdio.cli.main", *map(str, words), "--json"]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    out = tmp_path / "a.lines"
    words = ["-s", adk["psf"], "--select", "resid 1:20", "--stop", 12, "-w", 2]
    made = run("convert", adk["xtc"], out, *words)
    assert made["layout"] == "lines"
    top = ["-s", made["topologies"][0]]
    assert run("info", out)["n_frames"] == 12
    assert run("verify", out)["ok"] is True
    selected = ["--select", "name CA", "-o", tmp_path / "a.npz"]
    assert run("analyze", "rmsd", out, *top, *selected)["n_frames"] == 12
    back = run("convert", out, tmp_path / "b.zarr", *top)
    assert (back["layout"], back["n_frames"]) == ("zarr", 12)
    assert run("verify", tmp_path / "b.zarr", "--against", out)["frames_compared"] == 12
    atoms = mda.Universe(adk["psf"]).select_atoms("resid 1:20").indices
    expected = mdio.open(adk["xtc"]).read(0, 12, atoms=atoms).positions
    np.testing.assert_array_equal(mdio.open(tmp_path / "b.zarr").read(0, 12).positions, expected)


def test_advice(lines, source, adk, tmp_path):
    mdio.convert(source, tmp_path / "a.lines")
    found = quickly(adk, tmp_path, source=tmp_path / "a.lines", top=None, select=None)
    assert found.source.layout == "lines"
    assert found.trial("as-is") is not None


def test_the_reader_of_mdanalysis(lines, adk, tmp_path):
    mdio.convert(adk["xtc"], tmp_path / "a.lines", stop=2)
    u = mda.Universe(str(adk["psf"]), str(tmp_path / "a.lines"), format="MDIO")
    expected = mda.Universe(str(adk["psf"]), str(adk["xtc"]))
    for mine, theirs in zip(u.trajectory, expected.trajectory[:2], strict=True):
        np.testing.assert_array_equal(mine.positions, theirs.positions)
        assert mine.time == theirs.time


def test_options_that_it_does_not_have(lines, adk, tmp_path):
    mdio.convert(adk["xtc"], tmp_path / "a.lines", stop=2)
    with pytest.raises(TypeError, match="the layout lines has no option 'group'"):
        mdio.open(tmp_path / "a.lines", group="ca")


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("zarr = mdio_lines:LinesLayout", "the name is taken"),
        ("lines = mdio_lines:Nothing", "has no attribute 'Nothing'"),
        ("lines = mdio_lines:LinesWriter", "is not a subclass of mdio.layouts.base.Layout"),
    ],
)
def test_one_that_cannot_be_used(on_path, adk, tmp_path, entry, why):
    on_path(entry)
    with pytest.warns(UserWarning, match=f"is left out: .*{why}"):
        assert "lines" not in registry.plug_ins()
    assert registry.layout_class("zarr").__module__.startswith("mdio.")
    with pytest.raises(UnknownLayoutError, match="no layout is called 'lines'"):
        registry.layout_class("lines")


def test_layouts_of_ours_are_found_without_looking_for_others(adk, monkeypatch):
    def fail(**words):
        raise AssertionError("looked for")

    registry.plug_ins.cache_clear()
    monkeypatch.setattr("importlib.metadata.entry_points", fail)
    for suffix in ("xtc", "trr", "dcd", "ncdf"):
        assert mdio.open(adk[suffix]).info.layout == suffix
        assert registry.layout_name_for_output(f"a.{suffix}") == suffix


def test_the_example_says_where_it_is():
    project = tomllib.loads((FOLDER / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["mdio.layouts"] == {"lines": "mdio_lines:LinesLayout"}


def test_what_its_writer_forgets_is_told_or_refused(lines, adk, tmp_path, monkeypatch):
    """The example looks at no options: what was asked is not dropped without a word."""
    from MDAnalysisTests.datafiles import TRR

    out = tmp_path / "a.lines"
    with pytest.raises(PlanError, match=r"lines stores no atom groups.*--group ca"):
        mdio.convert(adk["xtc"], out, top=adk["psf"], groups={"ca": "name CA"})
    with pytest.raises(PlanError, match=r"--precision 0\.5 does not fit"):
        mdio.convert(adk["xtc"], out, precision=0.5)
    with pytest.raises(
        PlanError, match=r"lines files are not compressed; leave out --compression zstd"
    ):
        mdio.convert(adk["xtc"], out, compression="zstd")
    assert not out.exists()
    mdio.convert(TRR, out, select=range(5), stop=2)
    assert mdio.open(out).info.has_velocities
    monkeypatch.setattr(lines.LinesWriter, "fields", ("positions",))
    result = mdio.convert(TRR, out, select=range(5), stop=2, force=True)
    assert result.plan.notes[-1] == "lines holds no velocities: left out"
    assert b"velocities" not in out.read_bytes().replace(b'"velocities": null', b"")


def test_the_example_is_short():
    assert len((FOLDER / "mdio_lines.py").read_text().splitlines()) < 60


def without_atom(line):
    return but(line, positions=json.loads(line)["positions"][1:])


def but(line, **values):
    return json.dumps(json.loads(line) | values).encode() + b"\n"


@pytest.mark.parametrize(
    ("change", "frame", "what"),
    [
        (lambda line: line[: len(line) // 2] + b"\n", 3, "JSONDecodeError"),
        (lambda line: b"\xff" + line[1:], 3, "Unicode|JSONDecodeError"),
        (lambda _: b"[1, 2]\n", 3, "TypeError"),
        (lambda _: b'{"time": 1}\n', 3, "TypeError.*positions"),
        (without_atom, 3, r"ValueError: positions of shape \(61, 3\), expected \(62, 3\)"),
        (lambda _: b'{"positions": [[0, 0, "x"]]}\n', 3, "ValueError"),
        (lambda _: b'{"positions": 1}\n', 0, "TypeError"),
        (lambda line: but(line, positions=None), 3, "ValueError"),
        (lambda line: but(line, box=[1, 2]), 3, r"ValueError: box of shape \(2,\)"),
        (lambda line: but(line, time="later"), 3, "ValueError"),
        (lambda line: but(line, step=[1]), 3, "ValueError: step of shape"),
    ],
)
def test_what_is_damaged_is_told_by_frame_though_the_example_checks_nothing(
    lines, source, tmp_path, change, frame, what
):
    out = tmp_path / "a.lines"
    mdio.convert(source, out)
    records = out.read_bytes().splitlines(keepends=True)
    records[frame] = change(records[frame])
    out.write_bytes(b"".join(records))
    number = frame % len(records)
    with pytest.raises(SourceError, match=rf"a\.lines.*frame {number} is damaged \({what}"):
        mdio.open(out).read(number, number + 1)


@pytest.mark.parametrize("n_lost", [2, 9, 900])
def test_a_file_that_is_cut_in_its_last_line(lines, source, tmp_path, n_lost):
    out = tmp_path / "a.lines"
    mdio.convert(source, out)
    expected = mdio.open(out).read(0, 4).positions
    os.truncate(out, out.stat().st_size - n_lost)
    for _ in range(2):  # the second time with what the first one stored
        with mdio.open(out) as layout:
            assert layout.info.n_frames == 4
            assert any("ends within frame 4" in note for note in layout.notes)
            np.testing.assert_array_equal(layout.read(0, 4).positions, expected)
    with pytest.raises(SourceError, match="add --salvage"):
        mdio.convert(out, tmp_path / "a.zarr")
    assert mdio.convert(out, tmp_path / "a.zarr", salvage=True).n_frames == 4


def test_records_that_cannot_be_found_are_damage_to_the_file(lines, source, tmp_path, monkeypatch):
    out = tmp_path / "a.lines"
    mdio.convert(source, out)
    monkeypatch.setattr(lines.LinesLayout, "sizes", staticmethod(lambda file: map(int, file)))
    for salvage in (False, True):
        with pytest.raises(SourceError, match=r"a\.lines: its frames .* \(ValueError: invalid lit"):
            mdio.convert(out, tmp_path / "a.zarr", salvage=salvage)


def test_records_are_read_up_to_damage(lines, source, tmp_path, monkeypatch):
    def sizes(file):
        for line in file:
            if not line.startswith(b"{"):
                raise ValueError("no record")
            yield len(line)

    out = tmp_path / "a.lines"
    mdio.convert(source, out)
    monkeypatch.setattr(lines.LinesLayout, "sizes", staticmethod(sizes))
    data = bytearray(out.read_bytes())
    data[data.index(b"\n", data.index(b"\n") + 1) + 1] = 0  # where the third begins
    out.write_bytes(data)
    with pytest.raises(SourceError, match="add --salvage"):
        mdio.convert(out, tmp_path / "a.zarr")
    assert mdio.convert(out, tmp_path / "a.zarr", salvage=True).n_frames == 2


@pytest.mark.parametrize("name", ["time", "step"])
@pytest.mark.parametrize("frame", [0, 2])
def test_a_number_that_one_frame_lacks_is_not_made_up(lines, source, tmp_path, name, frame):
    out = tmp_path / "a.lines"
    mdio.convert(source, out)
    frames = [json.loads(line) for line in out.read_text().splitlines()]
    frames[frame][name] = None
    out.write_text("".join(json.dumps(one) + "\n" for one in frames))
    with pytest.raises(
        SourceError, match=rf"a\.lines.*frame .*it has (a|no) {name}, but the first"
    ):
        mdio.convert(out, tmp_path / "a.zarr")


def test_a_sniff_that_fails_leaves_the_file_to_other_layouts(lines, adk, tmp_path, monkeypatch):
    monkeypatch.setattr(lines.LinesLayout, "sniff", lambda path: 1 / 0)
    frame = tmp_path / "a.xyz"
    frame.write_text("1\n\nC 1.0 2.0 3.0\n")
    told = r"a\.xyz: the layout 'lines' is not tried, since its sniff failed: ZeroDivisionError"
    with pytest.warns(UserWarning, match=told):
        assert mdio.open(frame).info.n_frames == 1
    with pytest.warns(UserWarning, match=told), pytest.raises(SourceError):
        _ = mdio.open(frame, format="lines").info


def test_a_warning_of_the_command_is_a_line(tmp_path):
    folder = install(tmp_path / "site", "lines = mdio_lines:Nothing")
    (tmp_path / "a.odd").write_text("odd")
    command = [sys.executable, "-m", "mdio", "info", "a.odd"]
    env = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    first, _ = done.stderr.splitlines()
    assert first.startswith("mdio: the layout 'lines' (mdio_lines:Nothing) is left out: ")


@pytest.mark.parametrize("data", [b"", b"\n" * 3])
def test_a_file_without_frames(lines, tmp_path, data):
    (tmp_path / "a.lines").write_bytes(data)
    with pytest.raises(SourceError, match=r"a\.lines: .*damaged"):
        _ = lines.LinesLayout(tmp_path / "a.lines").info


def test_records_are_found_by_the_code_that_there_is_once_for_all_workers(
    lines, source, tmp_path, monkeypatch
):
    out = tmp_path / "a.lines"
    mdio.convert(source, out)

    def finds(sizes):
        monkeypatch.setattr(lines.LinesLayout, "sizes", staticmethod(sizes))

    def draft(file):
        sizes = [*map(len, file)]
        return [*sizes[:2], sum(sizes[2:4]), *sizes[4:]]

    finds(draft)
    assert mdio.open(out).info.n_frames == 4
    finds(lambda file: map(len, file))
    with mdio.open(out) as layout:
        sent, expected = pickle.dumps(layout.with_metadata()), layout.read(0, 5).positions
    finds(lambda file: pytest.fail("scanned again"))
    with pickle.loads(sent) as layout:
        np.testing.assert_array_equal(layout.read(0, 5).positions, expected)


def test_lines_that_are_added_later_are_found(lines, source, tmp_path):
    out = tmp_path / "a.lines"
    mdio.convert(source, out)
    with mdio.open(out) as layout:
        n_frames, last = layout.info.n_frames, layout.read(4, 5).positions
    with out.open("ab") as file:
        file.write(out.read_bytes().splitlines(keepends=True)[-1])
    with mdio.open(out) as layout:
        assert layout.info.n_frames == n_frames + 1
        np.testing.assert_array_equal(layout.read(n_frames, n_frames + 1).positions, last)


def test_its_bytes_are_asked_for_ahead_and_kept_on_the_node(lines, source, tmp_path):
    out = tmp_path / "a.lines"
    mdio.convert(source, out)
    with mdio.open(out) as layout:
        asked = list(layout.byte_ranges(1, 4, None))
        assert [(one.offset, one.nbytes) for one in asked] == [
            (int(layout.index.offsets[1]), int(layout.index.frame_nbytes[1:4].sum()))
        ]
        expected = layout.read(0, 5).positions
    for _ in range(2):
        before = reads.nbytes_cache
        with mdio.open(out, cache=tmp_path / "cache") as layout:
            np.testing.assert_array_equal(layout.read(0, 5).positions, expected)
    assert reads.nbytes_cache - before >= out.stat().st_size


def test_it_is_cut_into_segments(lines, source, tmp_path):
    mdio.convert(source, tmp_path / "a.lines")
    result = mdio.split(tmp_path / "a.lines", tmp_path / "a.segments", 2)
    assert result.plan.segment_frames == (3, 2)
    with mdio.open(tmp_path / "a.lines") as one, mdio.open(result.out) as other:
        np.testing.assert_array_equal(one.read(0, 5).positions, other.read(0, 5).positions)


def test_a_conversion_to_it_goes_on_where_it_was_killed(lines, source, tmp_path, monkeypatch):
    monkeypatch.setattr(records, "DECODED_PIECE_NBYTES", 1)  # a frame each
    mdio.convert(source, tmp_path / "whole.lines")
    made, encode = [], lines.LinesWriter.record

    def dies(frame):
        made.append(frame.step)
        if len(made) == 3:
            raise KeyboardInterrupt
        return encode(frame)

    monkeypatch.setattr(lines.LinesWriter, "record", staticmethod(dies))
    with pytest.raises(KeyboardInterrupt):
        mdio.convert(source, tmp_path / "a.lines", resume=True)
    assert not (tmp_path / "a.lines").exists()
    mdio.convert(source, tmp_path / "a.lines", resume=True)
    assert (tmp_path / "a.lines").read_bytes() == (tmp_path / "whole.lines").read_bytes()
    assert len(made) < 3 + 5
