"""Streams of simulations: frames of imdclient's own server, as they are stored."""

import gc
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import MDAnalysis as mda
import numpy as np
import pytest
from imdclient.IMDProtocol import IMDHeaderType, IMDSessionInfo, create_header_bytes
from imdclient.tests.server import InThreadIMDServer
from MDAnalysisTests.datafiles import COORDINATES_TOPOLOGY, COORDINATES_TRR
from numpy.testing import assert_array_equal
from suites.small_disks import fill_disk

import mdio
from mdio.cli.main import main
from mdio.core.errors import MissingExtraError, OutputError, PlanError, SourceError

TESTS = Path(__file__).parent.parent
SENDS = dict.fromkeys(("time", "energies", "box", "positions"), True)
SENDS |= {"velocities": False, "forces": False, "wrapped_coords": False}


@contextmanager
def simulation(traj, script=None, first=0, **sends):
    """Yield the URL of a simulation that sends frames of `traj` from `first` on, as `script` says.

    `script` gets the server, whose connection is closed then; by default it sends all.
    """
    sends = {"version": 3, "endianness": "<", **SENDS, **sends}
    server = InThreadIMDServer(traj.copy())
    server.set_imdsessioninfo(IMDSessionInfo(**sends))
    server.handshake_sequence("localhost", first_frame=False)

    def run():
        server.join_accept_thread()
        for _ in range(12):  # each waits five seconds
            if server.conn is None:
                server._accept_handshake(first_frame=False)
        try:
            if script is None:
                server.send_frames(first, len(traj))
            else:
                script(server)
        except OSError:  # who listened has left
            pass
        server.conn.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield f"imd://localhost:{server.port}"
    finally:
        thread.join(90)
        server.cleanup()
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def traj(adk):
    """98 frames of a protein, which need no file while they are sent."""
    return mda.Universe(adk["psf"], adk["xtc"], in_memory=True).trajectory


def assert_frames(out, traj, frames, atoms=slice(None)):
    with mdio.open(out) as layout:
        block = layout.read(0, layout.info.n_frames)
    assert_array_equal(block.step, list(frames))
    for at, frame in enumerate(frames):
        ts = traj[frame]
        assert block.time[at] == ts.time
        assert_array_equal(block.positions[at], ts.positions[atoms])
        np.testing.assert_allclose(block.box[at], ts.dimensions, rtol=1e-6)
    assert mdio.verify(out).ok


@pytest.mark.parametrize("endianness", ["<", ">"])
@pytest.mark.parametrize("target", ["zarr", "segments", "h5md"])
def test_every_field_lands_in_the_output(tmp_path, target, endianness):
    universe = mda.Universe(COORDINATES_TOPOLOGY, COORDINATES_TRR)
    traj, out = universe.trajectory, tmp_path / f"a.{target}"
    storage = mdio.Storage(container="trr") if target == "segments" else mdio.Storage()
    with simulation(traj, velocities=True, forces=True, endianness=endianness) as url:
        mdio.record(url, out, top=COORDINATES_TOPOLOGY, storage=storage)
    block = mdio.open(out).read(0, len(traj))
    assert block.n_frames == len(traj)
    exact = target != "segments"  # of which the units are others
    for at, ts in enumerate(traj):
        for name in ("positions", "velocities", "forces"):
            stored, sent = getattr(block, name)[at], getattr(ts, name)
            np.testing.assert_allclose(stored, sent, rtol=0 if exact else 3e-7)
        np.testing.assert_allclose(block.box[at], ts.dimensions, rtol=1e-6)
    assert_array_equal(block.time, [ts.time for ts in traj])
    assert_array_equal(block.step, [ts.frame for ts in traj])


def test_a_selection_and_a_group(adk, traj, tmp_path, capsys):
    out = tmp_path / "a.zarr"
    atoms = mda.Universe(adk["psf"]).select_atoms("resid 1:50")
    words = ["--select", "resid 1:50", "--group", "ca=name CA", "--json", "--every", "0s"]
    with simulation(traj) as url:
        assert main(["convert", url, str(out), "-s", str(adk["psf"]), *words]) == 0
    told = capsys.readouterr()
    said = json.loads(told.out)
    assert said["n_frames"] == len(traj) and said["n_atoms"] == len(atoms)
    assert "energies came" in " ".join(said["notes"]) and "whole frame" in " ".join(said["notes"])
    assert f"{out}: 1 frame so far" in told.err
    assert_frames(out, traj, range(len(traj)), atoms.indices)
    with mdio.open(out, group="ca") as group:
        carbons = atoms.select_atoms("name CA")
        assert_array_equal(group.read(9, 10).positions[0], traj[9].positions[carbons.indices])
    again = mda.Universe(str(out))
    assert list(again.atoms.names) == list(atoms.names)


@pytest.mark.parametrize("kept", [None, "resid 1:50"])
def test_molecules_are_made_whole_on_the_way(adk, traj, tmp_path, kept):
    moves = {"pbc": "mol", "center": "protein and resid 100:120"}
    out, after = tmp_path / "a.zarr", tmp_path / "after.zarr"
    with simulation(traj) as url:
        mdio.record(url, out, top=adk["psf"], select=kept, selection=mdio.Selection(**moves))
    with simulation(traj) as url:
        mdio.record(url, tmp_path / "raw.zarr", top=adk["psf"])
    chosen = mdio.Selection(**moves, select=kept)
    mdio.convert(tmp_path / "raw.zarr", after, top=adk["psf"], selection=chosen)
    one, other = (mdio.open(path).read(0, len(traj)).positions for path in (out, after))
    assert np.abs(one - traj[0].positions[: one.shape[1]]).max() > 1
    assert_array_equal(one, other)


@pytest.mark.parametrize("target", ["zarr", "segments", "h5md"])
def test_it_goes_on_with_what_is_there(adk, traj, tmp_path, target):
    out, whole = tmp_path / f"a.{target}", tmp_path / f"whole.{target}"
    storage = mdio.Storage(container="trr") if target == "segments" else mdio.Storage()
    options = {"top": adk["psf"], "storage": storage}
    with simulation(traj) as url:
        mdio.record(url, whole, **options)
    with simulation(traj, lambda server: server.send_frames(0, 40)) as url:
        mdio.record(url, out, append=True, **options)
    # From a checkpoint, so that frames come again.
    with simulation(traj, first=30) as url, pytest.warns(UserWarning, match="last 10 frames"):
        result = mdio.record(url, out, append=True, **options)
    assert result.n_frames == len(traj)
    one, other = (mdio.open(path).read(0, len(traj)) for path in (out, whole))
    assert_array_equal(one.positions, other.positions)
    assert_array_equal(one.step, other.step)


def test_steps_that_did_not_come_are_told(adk, traj, tmp_path, capsys):
    out = tmp_path / "a.zarr"

    def leaves_some_out(server):
        for frame in [*range(0, 20, 2), *range(30, 40, 2)]:
            server.send_frame(frame)

    words = [str(out), "--append", "-s", str(adk["psf"])]
    with simulation(traj, leaves_some_out) as url:
        assert main(["convert", url, *words]) == 0
    told = capsys.readouterr()
    assert "no frames came between steps 18 and 30, though one came every 2 before" in told.err
    assert "1 gap" in told.out
    frames = [*range(0, 20, 2), *range(30, 40, 2)]
    assert_frames(out, traj, frames)
    # The simulation went on while nobody listened.
    with simulation(traj, first=60) as url:
        assert main(["convert", url, *words]) == 0
    assert "no frames came between steps 38 and 60" in capsys.readouterr().err
    assert_frames(out, traj, [*frames, *range(60, len(traj))])


def breaks(how):
    def script(server):
        server.send_frames(0, 7)
        if how == "within":
            server.conn.sendall(create_header_bytes(IMDHeaderType.IMD_TIME, 1))
        elif how == "garbage":
            server.conn.sendall(b"\xff" * 4000)
        elif how == "reset":
            time.sleep(0.5)  # so that what was sent has been read
            server.conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return script


@pytest.mark.parametrize(
    "how, said",
    [("within", "within a frame"), ("garbage", "no frame of IMD"), ("reset", "broke")],
)
def test_a_stream_that_breaks(adk, traj, tmp_path, how, said):
    out = tmp_path / "a.zarr"
    with simulation(traj, breaks(how)) as url, pytest.raises(SourceError, match=said) as raised:
        mdio.record(url, out, top=adk["psf"])
    assert url in str(raised.value) and "7 whole frames" in str(raised.value)
    assert_frames(out, traj, range(7))
    with simulation(traj, first=7) as url:
        assert mdio.record(url, out, top=adk["psf"], append=True).n_frames == len(traj)
    assert_frames(out, traj, range(len(traj)))


def test_a_simulation_that_says_good_bye(adk, traj, tmp_path):
    def script(server):
        server.send_frames(0, 3)
        server.conn.sendall(create_header_bytes(IMDHeaderType.IMD_DISCONNECT, 0))

    with simulation(traj, script) as url:
        assert mdio.record(url, tmp_path / "a.zarr", top=adk["psf"]).n_frames == 3


@pytest.mark.parametrize("options, said", [({"until_idle_s": 0.3}, "0.3 s"), ({"n_frames": 4}, "")])
def test_it_ends_by_itself(adk, traj, tmp_path, options, said):
    left = threading.Event()

    def script(server):
        server.send_frames(0, 5)
        assert left.wait(30)

    with simulation(traj, script) as url:
        try:
            result = mdio.record(url, tmp_path / "a.zarr", top=adk["psf"], **options)
        finally:
            left.set()
    assert result.n_frames == options.get("n_frames", 5)
    assert said in " ".join(result.plan.notes)


def test_no_frame_at_all(adk, traj, tmp_path):
    out = tmp_path / "a.zarr"
    with (
        simulation(traj, lambda server: None) as url,
        pytest.raises(SourceError, match=r"no frame came \(the stream ended before the first"),
    ):
        mdio.record(url, out, top=adk["psf"])
    with pytest.raises(PlanError, match="0 frames are asked for"):
        mdio.record("imd://localhost:1", out, top=adk["psf"], n_frames=0)
    assert not list(tmp_path.iterdir())


def test_other_atoms_than_the_topology(adk, traj, tmp_path):
    with simulation(traj) as url, pytest.raises(SourceError, match=r"3341 atoms.*has 5") as raised:
        mdio.record(url, tmp_path / "a.zarr", top=COORDINATES_TOPOLOGY)
    assert url in str(raised.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # of imdclient's own
def test_what_it_cannot_be_begun_with(adk, tmp_path, capsys, monkeypatch):
    out, top = str(tmp_path / "a.zarr"), str(adk["psf"])
    with socket.create_server(("localhost", 0)) as there:
        port = there.getsockname()[1]  # where nobody listens, as soon as it is closed
    url = f"imd://localhost:{port}"
    with pytest.raises(SourceError, match=rf"{url}: no simulation answers.*refused"):
        mdio.record(url, out, top=top)
    gc.collect()
    for bad in ("imd://localhost", "imd://:1", "imd://a:b"):
        with pytest.raises(PlanError, match="imd://HOST:PORT"):
            mdio.record(bad, out, top=top)
    with pytest.raises(PlanError, match="-s/--top"):
        mdio.record(url, out)
    with pytest.raises(PlanError, match="not by where they are"):
        mdio.record(url, out, top=top, select="around 5 resid 1")
    for words in (["--dt", "5"], ["--pbc", "nojump"], ["--fit", "translation"], ["--dry-run"]):
        assert main(["convert", url, out, "-s", top, *words]) == 2
        assert words[0] in capsys.readouterr().err
    assert main(["convert", url, out, "-s", top, "-w", "2"]) == 2
    assert main(["info", url]) == 2
    assert "mdio convert imd://" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "imdclient.IMDClient", None)
    with pytest.raises(MissingExtraError, match=r"mdio-layouts\[imd\]"):
        mdio.record(url, out, top=top)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("sends", [{"version": 2}, {"time": False}, {"positions": False}])
def test_streams_that_say_too_little(adk, traj, tmp_path, sends):
    with simulation(traj, **sends) as url, pytest.raises(SourceError, match="version 3 with times"):
        mdio.record(url, tmp_path / "a.zarr", top=adk["psf"])


def test_an_output_that_is_there_begins_no_simulation(adk, tmp_path):
    (tmp_path / "a.zarr").mkdir()
    with pytest.raises(OutputError, match=r"a\.zarr: exists already"):
        mdio.record("imd://localhost:1", tmp_path / "a.zarr", top=adk["psf"])


def test_two_on_one_name(adk, traj, tmp_path):
    out, both = tmp_path / "a.zarr", threading.Barrier(2)

    def script(server):
        server.send_frames(0, 5)
        both.wait(30)
        server.send_frames(5, 10)

    said = []

    def one(url):
        try:
            said.append(mdio.record(url, out, top=adk["psf"], every_s=None))
        except OutputError as error:
            said.append(error)

    with simulation(traj, script) as a, simulation(traj, script) as b:
        threads = [threading.Thread(target=one, args=(url,)) for url in (a, b)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    errors = [each for each in said if isinstance(each, OutputError)]
    assert len(said) == 2 and len(errors) == 1 and "a.zarr" in str(errors[0])
    assert_frames(out, traj, range(10))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_what_is_complete(adk, traj, tmp_path, number):
    out, come, left = tmp_path / "a.zarr", threading.Event(), threading.Event()

    def script(server):
        server.send_frames(0, 12)
        come.set()
        assert left.wait(60)

    words = ["convert", "-s", str(adk["psf"]), "--every", "0s"]
    with simulation(traj, script) as url:
        command = [sys.executable, "-m", "mdio", *words, url, str(out)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                assert come.wait(90)
                line = b""
                while b"frame" not in line:  # it stores some
                    line = process.stderr.readline()
                    assert line
                os.kill(process.pid, number)
                told = process.communicate(timeout=60)[0]
            finally:
                left.set()
                process.kill()
    n_frames = mdio.open(out).info.n_frames
    assert process.returncode == 0 and b"%d frame" % n_frames in told and b"went on" in told, told
    assert 0 < n_frames <= 12
    assert_frames(out, traj, range(n_frames))
    with simulation(traj, first=n_frames) as url:
        assert mdio.record(url, out, top=adk["psf"], append=True).n_frames == len(traj)
    assert_frames(out, traj, range(len(traj)))


FILLS_IT = """
import sys, time
sys.path[:0] = [{tests!r}, {tests!r} + "/converters"]
import MDAnalysis as mda, mdio
from test_stream import assert_frames, simulation
traj = mda.Universe({psf!r}, {xtc!r}, in_memory=True).trajectory
out = sys.argv[1] + "/a.zarr"

def script(server):
    server.send_frames(0, 20)
    time.sleep(1)
    server.send_frames(20, len(traj))

with simulation(traj, script) as url:
    try:
        mdio.record(url, out, top={psf!r}, every_s=0.5)
    except mdio.core.errors.OutputError as error:
        print(error)
n_frames = mdio.open(out).info.n_frames
assert 0 < n_frames < len(traj), n_frames
assert_frames(out, traj, range(n_frames))
"""


def test_a_disk_that_fills(adk, tmp_path):
    files = {name: str(adk[name]) for name in ("psf", "xtc")}
    code = FILLS_IT.format(tests=str(TESTS), **files)
    fill_disk(tmp_path, "3M", code)


def test_an_output_without_steps_says_nothing_of_gaps(traj, adk, tmp_path):
    out, storage = tmp_path / "a.segments", mdio.Storage(container="ncdf")

    def sends_every_other(server, first):
        for frame in range(first, first + 20, 2):
            server.send_frame(frame)

    for first in (0, 20):
        script = partial(sends_every_other, first=first)
        told = pytest.warns(UserWarning, match="steps .* are not stored")
        with simulation(traj, script) as url, told:
            result = mdio.record(url, out, top=adk["psf"], append=True, storage=storage)
    assert not [note for note in result.plan.notes if "gap" in note]


def test_a_cell_that_is_rotated_is_told(traj, adk, tmp_path):
    class Rotated(list):
        n_atoms = traj.n_atoms

    values = {"dt": 1.0, "time": 0.0, "frame": 0, "positions": traj[0].positions}
    cells = [np.diag([50, 50, 60]), np.array([[30, 40, 0], [-40, 30, 0], [0, 0, 60]])]

    def script(server):
        server.traj = Rotated(SimpleNamespace(**values, triclinic_dimensions=one) for one in cells)
        server.send_frames(0, 2)

    with simulation(traj, script) as url:
        notes = mdio.record(url, tmp_path / "a.zarr", top=adk["psf"]).plan.notes
    assert len([note for note in notes if "rotated against x, y and z" in note]) == 1


def test_a_restart_in_the_output_is_no_interval(traj, adk, tmp_path):
    """Its last steps are 50 and 0: every frame after them would be behind a gap."""
    out = tmp_path / "a.zarr"
    first = mda.Universe(adk["psf"], adk["xtc"])
    with mda.Writer(str(tmp_path / "a.trr"), len(first.atoms)) as writer:
        for frame in (50, 0):
            ts = first.trajectory[frame]
            ts.data["step"], ts.time = frame, 1.0 * (frame == 0)
            writer.write(first.atoms)
    mdio.convert(tmp_path / "a.trr", out, top=adk["psf"])
    with simulation(traj, first=1) as url:
        notes = mdio.record(url, out, top=adk["psf"], append=True, n_frames=5).plan.notes
    assert not [note for note in notes if "gap" in note]
