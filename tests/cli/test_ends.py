"""How commands end: interrupted, out of memory, with a password or half an address."""

import errno
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import mdio
from mdio.cli.main import main
from mdio.core.errors import MdioError, PlanError, SourceError
from mdio.core.words import without_passwords

INTERRUPTED = """
import sys

class Finder:
    def find_spec(self, name, *more):
        if name == {name!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Finder())
sys.argv = ["mdio", "info", "none.xtc"]
from mdio.__main__ import main
main()
"""


@pytest.mark.parametrize("name", ["argparse", "mdio.cli.main", "mdio.cli.info", "numpy"])
def test_interrupted_while_importing(name):
    words = [sys.executable, "-c", INTERRUPTED.format(name=name)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr.count("\n") == 1 and "interrupted" in done.stderr


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_closed_standard_streams(adk, tmp_path, closed):
    for words in (
        ["convert", adk["xtc"], tmp_path / "a.zarr", "-w", "2"],
        ["analyze", "rgyr", tmp_path / "a.zarr", "--weights", "none", "-o", "-"],
    ):
        command = ["sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-m", "mdio", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


STARTING = """
import subprocess, sys
from mdio.__main__ import open_closed_streams

open_closed_streams()
words = [sys.executable, "-c", "import os; [os.fstat(number) for number in range(3)]"]
sys.exit(subprocess.run(words).returncode)
"""


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&- >&- 2>&-"])
def test_programs_that_are_started_have_standard_streams(closed):
    command = ["sh", "-c", f'"$@" {closed}', "sh", sys.executable, "-c", STARTING]
    assert subprocess.run(command, check=False).returncode == 0


SWALLOWED = """
import os, sys, weakref
from mdio.converters.strategies.conversion import Conversion

number, last = int(sys.argv[1]), sys.argv[2] == "last"
name = "_record" if not last else "_check_output"
former = getattr(Conversion, name)

class Held:
    pass

def ended(*arguments):
    former(*arguments)
    held = Held()
    keeper = weakref.ref(held, lambda _: os.kill(os.getpid(), number))
    del held

setattr(Conversion, name, ended)
from mdio.cli.main import main
sys.exit(main(["convert", *sys.argv[3:]]))
"""


@pytest.mark.usefixtures("ending_signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("name", ["a.zarr", "a.h5md"])
@pytest.mark.parametrize("more", [(), ("-w", "2")])
def test_a_signal_is_not_lost_in_a_callback(adk, tmp_path, name, more, number, code):
    def run(when):
        words = [*[str(adk["dcd"])] * 4, str(tmp_path / name), "--overlap", "keep-all", *more]
        words += ["--resume"] * (when == "last")
        program = [sys.executable, "-c", SWALLOWED, str(int(number)), when, *words]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        assert done.returncode == code and "Exception ignored" not in done.stderr, done.stderr
        return done.stderr.splitlines()[-1]

    assert "are kept in" in run("first")
    assert not (tmp_path / name).exists()
    end = run("last")  # past the last piece of work
    assert end.endswith(f"{tmp_path / name} is complete")
    assert mdio.verify(tmp_path / name).ok


SECRET = "s3cr/et"


@pytest.mark.parametrize(
    "url",
    [
        f"s3://key:{SECRET}@bucket/a.xtc",
        f"s3:/key:{SECRET}@bucket/a.xtc",
        f"s3//key:{SECRET}@bucket/a.xtc",
        f"s3:key:{SECRET}@bucket/a.xtc",
        f"htps://user:{SECRET}@host/a.zarr",
        f"https:/user:{SECRET}@host/a.zarr",
        f"user:{SECRET}@host/a.zarr",
        f"S3:///key:{SECRET}@bucket/a.xtc",
    ],
)
def test_passwords_of_mistyped_addresses_are_not_shown(url, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    commands = [
        ["info", url],
        ["convert", url, "out.zarr"],
        ["convert", "none.xtc", url],
        ["analyze", "rgyr", "none.xtc", "-s", url],
        ["verify", url, "--against", url],
        ["analyze", url, "a.xtc"],
        ["info", "none.xtc", "--cache-size", url],
        [url],
    ]
    for words in commands:
        try:
            assert main(words)
        except SystemExit as end:
            assert end.code == 2
        told = "".join(capsys.readouterr())
        assert told and SECRET not in told and "et@" not in told, (words, told)
    with pytest.raises(MdioError) as found:
        mdio.open(url).info  # noqa: B018
    assert SECRET not in str(found.value)


def test_what_is_no_password_stays():
    for text in ("a.xtc: no such file", "/data/a@b.xtc: 1:2", "s3://bucket/a@1: not there"):
        assert without_passwords(text) == text
    assert str(SourceError("s3:/a:b@c: x")) == "s3:/***@c: x"


@pytest.mark.parametrize("address", [":f", "numpy:", ":", "a b:f", ".:f", "a..b:f", "-:f"])
@pytest.mark.parametrize("command", ["analyze", "mapreduce"])
def test_half_an_address(address, command, adk, capsys):
    with pytest.raises(SystemExit) if address[0] == "-" else pytest.MonkeyPatch.context():
        assert main([command, address, str(adk["dcd"]), "-s", str(adk["psf"])]) == 2
        assert "a module and" in capsys.readouterr().err
    if command == "analyze" and address[0] != "-":
        with pytest.raises(PlanError, match="a module and"):
            mdio.analyze(adk["dcd"], kernel=address)


@pytest.mark.parametrize(
    "target",
    [
        "mdio.layouts.native.dcd.DCDLayout._read_into",
        "MDAnalysis.topology.PSFParser.PSFParser.parse",
        "mdio.analysis.kernels.geometry.gyration_of_block",
    ],
)
def test_out_of_memory(target, adk, monkeypatch, capsys, tmp_path, tmp_path_factory):
    def fail(*_, **__):
        raise MemoryError

    import MDAnalysis.topology.PSFParser  # noqa: F401

    import mdio.layouts.native.dcd  # noqa: F401

    fail.__name__ = target.rpartition(".")[2]
    monkeypatch.setattr(target, fail)
    top = shutil.copy(adk["psf"], tmp_path_factory.mktemp("top"))  # which nobody has parsed yet
    words = ["analyze", "rgyr", str(adk["dcd"]), "-s", str(top), "-o", "a.csv", "-q"]
    monkeypatch.chdir(tmp_path)
    assert main(words) == 1
    error = capsys.readouterr().err
    assert "out of memory; select fewer atoms" in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


AT_WORK = """
import os, time

def at_work(block):
    os.write(1, b"at work\\n")
    time.sleep(100)

class AtWork:
    def map(self, block):
        at_work(block)

    def reduce(self, key, frames, times, values):
        return 0
"""


def ended_at_work(words, n_workers, cwd):
    """Return what a program wrote to stderr, which was ended once its kernels were at work."""
    (cwd / "ends.py").write_text(AT_WORK)
    pipe = subprocess.PIPE
    words = [sys.executable, *words]
    process = subprocess.Popen(words, cwd=cwd, stdout=pipe, stderr=pipe, text=True)
    for _ in range(n_workers):
        assert process.stdout.readline() == "at work\n"
    process.send_signal(signal.SIGTERM)
    told = process.communicate(timeout=60)[1]  # once no worker has its end of the pipe any more
    assert process.returncode == 143
    assert {path.name for path in cwd.iterdir()} <= {"ends.py", "__pycache__"}
    return told


@pytest.mark.usefixtures("ending_signals")
@pytest.mark.parametrize("n_workers", [1, 2])
@pytest.mark.parametrize("command", ["analyze ends:at_work", "mapreduce ends:AtWork"])
def test_a_signal_ends_a_command_and_its_workers_at_once(command, n_workers, adk, tmp_path):
    words = ["-m", "mdio", *command.split(), str(adk["dcd"]), "-w", str(n_workers), "-o", "a.csv"]
    line = f"mdio {words[2]}: ended by a signal; nothing half-written is left\n"
    assert ended_at_work(words, n_workers, tmp_path) == line


@pytest.mark.usefixtures("ending_signals")
def test_a_signal_ends_the_workers_of_a_program(adk, tmp_path):
    code = "import mdio, sys; mdio.analyze(sys.argv[1], kernel='ends:at_work', workers=2)"
    assert ended_at_work(["-c", code, str(adk["dcd"])], 2, tmp_path) == ""


@pytest.mark.usefixtures("ending_signals")
@pytest.mark.parametrize("way", ["--mpi", "--executor=mpi", "-w2"])
def test_ranks_are_not_interrupted_while_mpi_starts(way, adk, monkeypatch):
    """One of them would wait for the others in MPI_Init, where Python handles no signal."""
    handlers = []

    def chosen(_args):
        handlers.append(signal.getsignal(signal.SIGTERM))
        raise PlanError("not now")

    monkeypatch.setattr(sys.modules["mdio.cli.main"], "chosen_executor", chosen)
    assert main(["analyze", "rgyr", str(adk["dcd"]), way]) == 2
    assert (handlers == [signal.SIG_DFL]) == (way != "-w2")


@pytest.fixture
def full_disk(tmp_path, monkeypatch):
    """A folder on a full disk; the temporary folder, ``spare`` beside it, is on another one."""
    from mdio.core.files import publish

    folders = [tmp_path / name for name in ("full", "spare")]
    for folder in folders:
        folder.mkdir()
    flush_tree = publish.flush_tree

    def flush(path):
        if path.parent == folders[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        flush_tree(path)

    monkeypatch.setattr(publish, "flush_tree", flush)
    monkeypatch.setattr(tempfile, "tempdir", str(folders[1]))
    return folders[0]


RESIDENCE = ["mdio.mapreduce.programs.residence:WaterResidence", "--set", "around=name CA"]
RESULTS = {
    "npz": ["analyze", "rmsd"],
    "csv": ["analyze", "rmsd"],
    "xvg": ["analyze", "rmsd"],
    "mapreduce.npz": ["mapreduce", *RESIDENCE, "--set", "water=name CB"],
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_that_cannot_be_saved_is_kept_elsewhere(name, adk, full_disk, tmp_path, capsys):
    words = [*RESULTS[name], str(adk["dcd"]), "-s", str(adk["psf"]), "--quiet", "-o"]
    assert main([*words, str(tmp_path / f"r.{name}")]) == 0
    assert main([*words, str(full_disk / f"r.{name}")]) == 1
    told = capsys.readouterr().err
    (kept,) = Path(tempfile.gettempdir()).iterdir()
    assert kept.suffix == f".{name}"[-4:] and not list(full_disk.iterdir())
    assert re.search(
        rf"full/r.{name}: the disk is full; .*; the result is in {kept}: move it", told
    )
    if kept.suffix == ".npz":
        with np.load(kept) as saved, np.load(tmp_path / f"r.{name}") as want:
            assert saved.files == want.files
            assert all(np.array_equal(saved[array], want[array]) for array in want.files)
    else:
        assert kept.read_bytes() == (tmp_path / f"r.{name}").read_bytes()


def test_a_result_that_can_be_kept_nowhere(adk, full_disk, monkeypatch, capsys):
    for place in (full_disk, full_disk / "none"):
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        assert main(["analyze", "rmsd", str(adk["dcd"]), "-o", str(full_disk / "r.npz")]) == 1
        assert capsys.readouterr().err.endswith("free some space or choose another place\n")
        assert not list(full_disk.iterdir())
