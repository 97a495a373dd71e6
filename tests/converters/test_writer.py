"""Outputs of frames that a program makes: what is there while it runs, and after it died."""

import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
import warnings
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from suites.numbered_frames import N_ATOMS, assert_frames, frames_of
from suites.small_disks import fill_disk

import mdio
from mdio.cli.main import main
from mdio.core.errors import OptionError, OutputError, PlanError, SourceError

TESTS = Path(__file__).parent.parent
GROWING = ["zarr", "segments"]


def shard_frames_of(writer):
    return writer._growing.unit_frames


@pytest.mark.parametrize("target", ["zarr", "h5md", "segments"])
def test_every_field_comes_back(tmp_path, target):
    rng, n_frames = np.random.default_rng(1), 30
    numbers = {
        name: rng.normal(size=(n_frames, 7, 3)).astype("f4")
        for name in ("positions", "velocities", "forces")
    }
    box = np.tile(np.float32([10, 11, 12, 90, 90, 90]), (n_frames, 1)) + np.arange(30)[:, None]
    options = {"storage": mdio.Storage(container="trr")} if target == "segments" else {}
    out = tmp_path / f"a.{target}"
    with mdio.Writer(out, 7, **options) as writer:
        for n in (0, 1):
            one = {name: values[n] for name, values in numbers.items()}
            writer.write_block(**one, box=box[n], time=0.5 * n, step=10 * n)
        rest = {name: values[2:] for name, values in numbers.items()}
        frames = np.arange(2, n_frames)
        writer.write_block(**rest, box=box[2:], time=0.5 * frames, step=10 * frames)
    block = mdio.open(out).read(0, n_frames)
    exact = target != "segments"  # of which the units are others
    for name, values in numbers.items():
        np.testing.assert_allclose(getattr(block, name), values, rtol=0 if exact else 3e-7)
    np.testing.assert_allclose(block.box, box, rtol=0 if exact else 1e-5)
    assert_array_equal(block.time, 0.5 * np.arange(n_frames))
    assert_array_equal(block.step, 10 * np.arange(n_frames))
    assert mdio.verify(out).ok
    assert [path.name for path in tmp_path.iterdir() if path.suffix] == [out.name]


def test_frames_are_counted_where_nothing_is_said(tmp_path):
    with mdio.Writer(tmp_path / "a.zarr", dt_ps=2.0) as writer:
        writer.write_block(frames_of(0, 3))
        writer.write_block(frames_of(3, 4)[0])
    block = mdio.open(tmp_path / "a.zarr").read(0, 4)
    assert block.time.tolist() == [0, 2, 4, 6] and block.step.tolist() == [0, 1, 2, 3]
    assert not block.box.any()


def test_a_field_that_some_frames_lack(tmp_path):
    with mdio.Writer(tmp_path / "a.zarr", velocities=True) as writer:
        writer.write_block(frames_of(0, 1))
        writer.write_block(frames_of(1, 2), velocities=frames_of(0, 1))
    u = mda.Universe(str(tmp_path / "a.zarr"))
    assert [ts.has_velocities for ts in u.trajectory] == [False, True]


@pytest.mark.parametrize("target", GROWING)
def test_shards_are_read_while_it_writes(tmp_path, target):
    out = tmp_path / f"a.{target}"
    with mdio.Writer(
        out, **({"storage": mdio.Storage(chunk_frames=16)} if target == "zarr" else {})
    ) as writer:
        writer.write_block(frames_of(0, 1))
        size = shard_frames_of(writer)
        writer.write_block(frames_of(1, 2 * size + 3), time=np.arange(1, 2 * size + 3))
        writer._wait_for_storing()
        assert_frames(out, 2 * size)
        with mdio.open(out) as reader:
            old = reader.read(0, 1).positions
            writer.write_block(frames_of(2 * size + 3, 3 * size))
            writer._wait_for_storing()
            assert_array_equal(old, frames_of(0, 1))
        writer.write_block(frames_of(3 * size, 3 * size + 2))
    assert_frames(out, 3 * size + 2)


def test_what_is_there_is_stored_after_some_time_too(tmp_path):
    with mdio.Writer(tmp_path / "a.zarr", every_s=0, background=False) as writer:
        for n in range(5):
            writer.write_block(frames_of(n, n + 1), time=n)
            assert_frames(tmp_path / "a.zarr", n + 1)


def test_flush(tmp_path):
    with mdio.Writer(tmp_path / "a.zarr") as writer:
        writer.write_block(frames_of(0, 5))
        writer.flush()
        assert_frames(tmp_path / "a.zarr", 5)
        writer.write_block(frames_of(5, 7))
    assert_frames(tmp_path / "a.zarr", 7)


def test_memory_holds_two_shards(tmp_path):
    tracemalloc.start()
    with mdio.Writer(tmp_path / "a.zarr", storage=mdio.Storage(chunk_frames=16)) as writer:
        writer.write_block(frames_of(0, 1))
        shard_nbytes = shard_frames_of(writer) * 12 * N_ATOMS
        for n in range(1, 6 * shard_frames_of(writer)):
            writer.write_block(frames_of(n, n + 1))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 3.5 * shard_nbytes  # and what encodes one of them


def test_frames_of_one_atom_are_planned_without_making_them(tmp_path):
    tracemalloc.start()
    with mdio.Writer(tmp_path / "a.zarr") as writer:
        writer.write_block(frames_of(0, 1, n_atoms=1))
        shard_nbytes = sum(array.nbytes for array in writer._block.arrays().values())
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2 * shard_nbytes


SIMULATION = """
import sys, numpy as np, mdio
sys.path.insert(0, {tests!r})
from suites.numbered_frames import frames_of
first, background, out = int(sys.argv[1]), sys.argv[2] == "True", sys.argv[3]
writer = mdio.Writer(out, append=True, background=background, {options})
for n in range(first, 1 << 30):
    writer.write_block(frames_of(n, n + 1), time=n)
    print(n, writer._growing.unit_frames, flush=True)
"""


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("target", ["zarr", "segments", "h5md"])
def test_a_killed_program_loses_a_shard_at_most(tmp_path, target, background):
    out, rng = tmp_path / f"a.{target}", np.random.default_rng(3)
    grows = tmp_path / f"{out.name}.zarr" if target == "h5md" else out
    options = {"zarr": "storage=mdio.Storage(chunk_frames=16)", "segments": "", "h5md": ""}[target]
    code = SIMULATION.format(tests=str(TESTS), options=options)
    first = 0
    for _ in range(2):
        words = [sys.executable, "-c", code, str(first), str(background), str(out)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
            shards = 1.2 + background + rng.random()
            for line in program.stdout:
                n, size = map(int, line.split())
                if n - first > shards * size:
                    break
            program.send_signal(signal.SIGKILL)
            more = [one for one in program.stdout.read().splitlines()[:-1] if one]
        n_written = 1 + int((more or [line])[-1].split()[0]) - first
        stored = mdio.open(grows).info.n_frames
        assert first + n_written - stored <= (2 if background else 1) * size
        assert stored % size == 0
        assert_frames(grows, stored)
        first = stored - 5  # it goes on from a checkpoint before that
    with (
        pytest.warns(UserWarning, match="last 5 frames"),
        mdio.Writer(out, append=True) as writer,
    ):
        writer.write_block(frames_of(first, first + 20), time=first + np.arange(20))
    assert_frames(out, first + 20)
    assert not list(tmp_path.glob("a.h5md.zarr"))


def test_an_output_of_a_conversion_goes_on(adk, tmp_path):
    for target in ("zarr", "h5md", "segments"):
        out = tmp_path / f"a.{target}"
        mdio.convert(adk["dcd"], out, stop=40)
        block = mdio.open(adk["dcd"]).read(40, 98)
        with mdio.Writer(out, append=True) as writer:
            writer.write_block(block.positions, box=block.box, time=block.time, step=block.step)
        assert mdio.verify(out).ok
        assert_array_equal(
            mdio.open(out).read(0, 98).positions, mdio.open(adk["dcd"]).read(0, 98).positions
        )


@pytest.mark.parametrize("target", ["zarr", "h5md"])
def test_groups_and_atoms(adk, tmp_path, target):
    u = mda.Universe(str(adk["psf"]), str(adk["dcd"]))
    some = u.select_atoms("protein and resid 1:50")
    with mdio.Writer(tmp_path / f"a.{target}", groups={"ca": "name CA"}) as writer:
        for _ in u.trajectory[:10]:
            writer.write(some)
    ours = mda.Universe(str(tmp_path / f"a.{target}"))
    assert ours.atoms.names.tolist() == some.names.tolist()
    assert ours.bonds.to_indices().shape == some.intra_bonds.to_indices().shape
    group = mdio.open(tmp_path / f"a.{target}", group="ca")
    u.trajectory[9]
    assert_array_equal(group.read(9, 10).positions[0], some.select_atoms("name CA").positions)


def test_rounding(tmp_path):
    with mdio.Writer(tmp_path / "a.zarr", precision=0.01) as writer:
        writer.write_block(frames_of(0, 300))
        writer.flush()
        writer.write_block(frames_of(300, 400))
    positions = mdio.open(tmp_path / "a.zarr").read(0, 400).positions
    assert 0 < np.abs(positions - frames_of(0, 400)).max() < 0.00502


def test_nothing_is_made_of_no_frames(tmp_path):
    for name in ("a.zarr", "a.h5md"):
        with pytest.warns(UserWarning, match=f"{name}: closed before any frame was written"):
            mdio.Writer(tmp_path / name, N_ATOMS).close()
        with mdio.Writer(tmp_path / name) as writer:
            writer.write_block(frames_of(0, 0))
    assert not list(tmp_path.iterdir())


def test_a_frame_of_another_size(adk, tmp_path):
    u = mda.Universe(str(adk["psf"]), str(adk["dcd"]))
    with mdio.Writer(tmp_path / "a.zarr") as writer:
        writer.write(u.atoms)
        with pytest.raises(ValueError, match=r"a\.zarr: positions of shape \(5, 3\).*3341 atoms"):
            writer.write(u.atoms[:5])
        with pytest.raises(ValueError, match=r"a\.zarr: a frame with velocities.*velocities=True"):
            writer.write_block(u.atoms.positions, velocities=u.atoms.positions)
        with pytest.raises(ValueError, match=r"box of shape \(3,\), expected \(1, 6\)"):
            writer.write_block(u.atoms.positions, box=[1, 2, 3])
        with pytest.raises(ValueError, match=r"time of shape \(2,\), expected \(1,\)"):
            writer.write_block(u.atoms.positions, time=[1, 2])
        with pytest.raises(TypeError, match="expected an AtomGroup"):
            writer.write(u.atoms.positions)
    assert mdio.open(tmp_path / "a.zarr").info.n_frames == 1
    with (
        pytest.raises(OutputError, match="has 3341 atoms, but the frames to add have 10000"),
        mdio.Writer(tmp_path / "a.zarr", append=True) as writer,
    ):
        writer.write_block(frames_of(0, 1), time=100)


def test_options_that_do_not_go(tmp_path):
    with pytest.raises(OptionError, match=r"Writer has no option 'precison'.*precision"):
        mdio.Writer(tmp_path / "a.zarr", precison=1)
    with pytest.raises(PlanError, match="--segments needs all frames"):
        mdio.Writer(tmp_path / "a.segments", storage=mdio.Storage(segments=3))
    with pytest.raises(PlanError, match="suffix"):
        mdio.Writer(tmp_path / "a.what")
    with pytest.raises(PlanError, match=r"a\.refs: refs refers to frames in other files"):
        mdio.Writer(tmp_path / "a.refs")
    with pytest.raises(PlanError, match="--container"):
        mdio.Writer(tmp_path / "a.zarr", storage=mdio.Storage(container="xtc"))
    with (
        pytest.raises(PlanError, match="needs a topology"),
        mdio.Writer(tmp_path / "a.zarr", groups={"ca": "name CA"}) as writer,
    ):
        writer.write_block(frames_of(0, 1))


@pytest.mark.parametrize("name", ["a.zarr", "a.h5md"])
def test_what_is_there_is_kept(tmp_path, name):
    out = tmp_path / name
    with mdio.Writer(out) as writer:
        writer.write_block(frames_of(0, 10))
    with pytest.raises(OutputError, match=f"{name}: exists already.*append=True"):
        mdio.Writer(out)
    with (
        pytest.raises(OutputError, match=f"{name}: begins at 0 ps.*first frame to add is at 0 ps"),
        mdio.Writer(out, append=True) as writer,
    ):
        writer.write_block(frames_of(0, 1), time=0)
    assert_frames(out, 10)
    with mdio.Writer(out, force=True) as writer:
        writer.write_block(frames_of(0, 4))
        assert_frames(out, 10)
    assert_frames(out, 4)


def test_an_output_that_cannot_be_made_in_the_end_names_the_tree_with_its_frames(tmp_path):
    writer = mdio.Writer(tmp_path / "a.xtc", precision=0.01)
    writer.write_block(frames_of(0, 3), step=[0, 1, 1 << 40])
    with pytest.raises(OutputError, match=r"32-bit.* all frames are in .*a\.xtc\.zarr"):
        writer.close()
    assert_frames(tmp_path / "a.xtc.zarr", 3)


@pytest.mark.parametrize("append", [False, True])
def test_two_writers_on_one_name(tmp_path, append):
    out = tmp_path / "a.zarr"
    if append:
        with mdio.Writer(out) as writer:
            writer.write_block(frames_of(0, 3))
    first, second = (mdio.Writer(out, append=append, background=False) for _ in "ab")
    for writer in (first, second):
        writer.write_block(frames_of(3 * append, 3 * append + 2), time=3 * append + np.arange(2))
    first.flush()
    with pytest.raises(OutputError, match=r"a\.zarr: (it exists|another run has changed it)"):
        second.flush()
    with pytest.raises(OutputError, match=r"a\.zarr"):
        second.write_block(frames_of(5, 6))
    second.close()
    first.write_block(frames_of(3 * append + 2, 3 * append + 4))
    first.close()
    assert_frames(out, 3 * append + 4)


FILLS_IT = """
import sys
import threading
import mdio
sys.path.insert(0, {tests!r})
from suites.numbered_frames import assert_frames, frames_of
out = sys.argv[1] + "/a.zarr"
writer = mdio.Writer(out, storage=mdio.Storage(chunk_frames=16))
try:
    for n in range(1 << 30):
        writer.write_block(frames_of(n, n + 1), time=n)
except mdio.core.errors.OutputError as error:
    print(error, n)
    size = writer._growing.unit_frames
    writer.close()
    stored = mdio.open(out).info.n_frames
    assert stored % size == 0 and n - stored <= 2 * size, (n, stored, size)
    assert_frames(out, stored)
"""


def test_a_disk_that_fills(tmp_path):
    code = FILLS_IT.format(tests=str(TESTS))
    assert not fill_disk(tmp_path, "100M", code)


def test_a_program_that_does_not_close_it(tmp_path):
    code = (
        "import mdio, numpy as np, os\n"
        f"writer = mdio.Writer({str(tmp_path / 'a.zarr')!r})\n"
        "writer.write_block(np.zeros((9, 4, 3)))\n"
        "if os.fork() == 0:\n"
        "    raise SystemExit\n"
        "os.wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not done.stderr
    assert mdio.open(tmp_path / "a.zarr").info.n_frames == 9


def test_a_thread_that_outlives_the_main_thread(tmp_path):
    code = (
        "import mdio, numpy as np, threading\n"
        f"writer = mdio.Writer({str(tmp_path / 'a.zarr')!r})\n"
        "writer.write_block(np.zeros((4, 3)))\n"
        "def write():\n"
        "    while True:\n"
        "        writer.write_block(np.zeros((4, 3)))\n"
        "threading.Thread(target=write).start()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "a.zarr: closed, since the main thread has ended" in done.stderr
    assert mdio.open(tmp_path / "a.zarr").info.n_frames >= 1


def test_a_copy_of_a_writer_in_another_process(tmp_path):
    code = (
        "import mdio, numpy as np, os\n"
        f"writer = mdio.Writer({str(tmp_path / 'a.zarr')!r})\n"
        "writer.write_block(np.zeros((9, 4, 3)))\n"
        "if os.fork() == 0:\n"
        "    writer.write_block(np.zeros((9, 4, 3)))\n"
        "os.wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "a.zarr: its writer belongs to the process that made it" in done.stderr
    assert mdio.open(tmp_path / "a.zarr").info.n_frames == 9


def test_what_was_written_before_an_error_is_stored(tmp_path):
    with pytest.raises(ZeroDivisionError), mdio.Writer(tmp_path / "a.zarr") as writer:
        writer.write_block(frames_of(0, 3))
        raise ZeroDivisionError
    assert_frames(tmp_path / "a.zarr", 3)


def test_an_error_in_the_background_comes_with_the_next_frame(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    writer = mdio.Writer(folder / "a.zarr", every_s=0)
    writer.write_block(frames_of(0, 1))
    writer._wait_for_storing()
    shutil.rmtree(folder)
    writer.write_block(frames_of(1, 2), time=1)
    deadline = time.monotonic() + 30
    with pytest.raises(OSError, match=r"a\.zarr"):
        while time.monotonic() < deadline:
            writer.write_block(frames_of(2, 3), time=2)
    writer.close()


def test_times_and_steps_go_on_where_the_output_ends(tmp_path):
    out = tmp_path / "a.zarr"
    with mdio.Writer(out, dt_ps=2.0) as writer:
        writer.write_block(np.zeros((3, 5, 3), "f4"))
    with mdio.Writer(out, append=True, dt_ps=2.0) as writer:
        writer.write_block(np.ones((2, 5, 3), "f4"))
    with (
        mdio.Writer(out, append=True) as writer,
        pytest.warns(UserWarning, match="its last 1 frame, from 8 ps on"),
    ):
        writer.write_block(np.ones((2, 5, 3), "f4"), time=[8.0, 10.0])
    with mdio.open(out) as layout:
        block = layout.read(0, layout.info.n_frames)
    assert block.time.tolist() == [0, 2, 4, 6, 8, 10]
    assert block.step.tolist() == [0, 1, 2, 3, 4, 5]


def test_native_files_are_not_continued(tmp_path):
    with mdio.Writer(tmp_path / "a.xtc") as writer:
        writer.write_block(np.zeros((3, 5, 3), "f4"))
    with pytest.raises(OutputError, match="nothing can be added to xtc"):
        mdio.Writer(tmp_path / "a.xtc", append=True)


def test_atoms_of_another_number_are_refused(tmp_path):
    atoms = mda.Universe.empty(7, trajectory=True).atoms
    with pytest.raises(ValueError, match="7 atoms, but frames of 5"):
        mdio.Writer(tmp_path / "a.zarr", n_atoms=5, atoms=atoms)
    with (
        mdio.Writer(tmp_path / "b.zarr") as writer,
        pytest.raises(ValueError, match="of some atoms"),
    ):
        writer.write_block(np.zeros((3, 0, 3), "f4"))


def test_steps_that_a_format_does_not_hold(tmp_path):
    steps = [500, 1000, 1500]
    lost = pytest.warns(UserWarning, match=r"steps \(500, 1000, ...\) are not stored")
    with lost, mdio.Writer(tmp_path / "a.segments") as writer:
        writer.write_block(np.zeros((3, 5, 3)), step=steps)
    with mdio.Writer(tmp_path / "a.xtc") as writer:
        writer.write_block(np.zeros((3, 5, 3)), step=steps)
    assert mdio.open(tmp_path / "a.xtc").read(0, 3).step.tolist() == steps
    notes = mdio.convert(tmp_path / "a.xtc", tmp_path / "a.ncdf").plan.notes
    assert any("steps (500, 1000, ...) are not stored" in note for note in notes)


@pytest.mark.parametrize(
    "wrong", [{"step": 2.7}, {"box": [-1, 9, 9, 90, 90, 90]}, {"box": [9, 9, 9, 90, 90, 200]}]
)
def test_what_a_frame_cannot_have(tmp_path, wrong):
    with mdio.Writer(tmp_path / "a.zarr") as writer, pytest.raises(ValueError, match=r"a\.zarr"):
        writer.write_block(np.zeros((5, 3)), **wrong)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"positions": np.ma.masked_less(np.ones((2, 4, 3)), 2)}, "masked"),
        ({"positions": np.ones((2, 4, 3)) * 1j}, "complex"),
        ({"positions": np.ones((2, 4, 3)), "step": [1, 2**70]}, "step is"),
        ({"positions": [[1, 2], [3]]}, r"a\.zarr: positions is \[\[1, 2\], \[3\]\]"),
        ({"positions": np.ones((2, 4, 3)), "time": "x"}, r"a\.zarr: time is 'x'"),
    ],
)
def test_arrays_that_would_lose_something(tmp_path, arrays, says):
    with mdio.Writer(tmp_path / "a.zarr") as writer, pytest.raises(ValueError, match=says):
        writer.write_block(**arrays)


@pytest.mark.parametrize("box", [[40, 40, 40, 30, 30, 100], [40, 40, 40, 0, 0, 0]])
def test_boxes_that_are_no_cells(tmp_path, box):
    with mdio.Writer(tmp_path / "a.zarr") as writer, pytest.raises(ValueError, match="of a cell"):
        writer.write_block(np.ones((2, 4, 3)), box=box)


def xtc_with_a_tail(adk, tmp_path, target="zarr", **options):
    """Return an output of 40 frames of an XTC, and 5 of a program behind them."""
    out = tmp_path / f"x.{target}"
    mdio.convert(adk["xtc"], out, stop=40, **options)
    with mdio.open(adk["xtc"]) as source, mdio.Writer(out, append=True) as writer:
        block = source.read(40, 45)
        block.positions += np.float32(0.0012)
        writer.write_block(block.positions, box=block.box, time=block.time, step=block.step)
    return out, block


H5MD_INTEGERS = {"precision": "auto", "compression": "bitpack"}


@pytest.mark.parametrize("target", ["zarr", "h5md"])
def test_floats_behind_the_integers_of_an_xtc(adk, tmp_path, target):
    with pytest.warns(UserWarning, match="the integers of an XTC, and what is added is kept as"):
        out, block = xtc_with_a_tail(
            adk, tmp_path, target, **(H5MD_INTEGERS if target == "h5md" else {})
        )
    with mdio.open(out) as layout:
        assert not layout.info.xtc_integers
        assert layout.info.precision is None
        assert_array_equal(layout.read(40, 45).positions, block.positions)
    notes = mdio.convert(out, tmp_path / "back.xtc").plan.notes
    assert any("rounds positions" in note for note in notes)
    mdio.convert(out, tmp_path / "other.zarr")
    assert_array_equal(mdio.open(tmp_path / "other.zarr").read(40, 45).positions, block.positions)
    with mdio.Writer(out, append=True) as writer:  # it is told once
        writer.write_block(block.positions, box=block.box, time=block.time[-1] + np.arange(1, 6))
    mdio.append(adk["xtc"], out)  # whose frames take the place of the program's
    with mdio.open(out) as layout:
        assert layout.info.xtc_integers
    assert mdio.verify(out, adk["xtc"]).frames_compared == 98


@pytest.mark.filterwarnings("ignore:.*the integers of an XTC")
def test_the_source_of_what_a_program_goes_on_with(adk, tmp_path, capsys):
    out, block = xtc_with_a_tail(adk, tmp_path)
    with mdio.open(out) as layout:
        assert layout.manifest["source"]["n_frames"] == 98
        assert layout.manifest["source"]["by_program"] == [[40, 45, 1]]
    assert main(["verify", str(out), "--against", str(adk["xtc"])]) == 0
    told = capsys.readouterr().out
    assert "40 frames compared" in told
    assert "5 frames written by a program" in told
    main(["info", str(out)])
    assert "40 of 98 frames, 5 frames written by a program" in capsys.readouterr().out
    shards = sorted(out.glob("particles/trajectory/position/value/c.*"))
    before = [shard.read_bytes() for shard in shards]
    shards[0].unlink()
    assert mdio.repair(out, adk["xtc"]).repaired
    assert [shard.read_bytes() for shard in shards] == before
    shards[-1].write_bytes(b"x")
    with pytest.raises(SourceError, match="a program wrote are damaged, which no source has"):
        mdio.repair(out, adk["xtc"])
    shards[-1].write_bytes(before[-1])
    assert main(["convert", str(adk["xtc"]), str(out), "--follow", "--append", "--frames", "99"])
    assert "not every frame of one file" in capsys.readouterr().err
    with mdio.Writer(out, append=True) as writer, pytest.warns(UserWarning, match="are replaced"):
        writer.write_block(block.positions[:1], box=block.box[:1], time=block.time[2:3])
    with mdio.open(out) as layout:
        assert layout.manifest["source"]["by_program"] == [[40, 43, 1]]


@pytest.mark.parametrize("target", ["zarr", "h5md", "segments"])
def test_a_file_is_added_behind_what_a_program_wrote(adk, tmp_path, target):
    out = tmp_path / f"a.{target}"
    block = mdio.open(adk["dcd"]).read(0, 50)
    with mdio.Writer(out) as writer:
        writer.write_block(block.positions, box=block.box, time=block.time)
    mdio.convert(adk["dcd"], tmp_path / "rest.dcd", start=50)
    mdio.append(tmp_path / "rest.dcd", out)
    with mdio.open(out) as layout, mdio.open(adk["dcd"]) as source:
        assert_array_equal(layout.read(0, 98).positions, source.read(0, 98).positions)
        assert layout.manifest["source"]["by_program"] == [[0, 50, 1]]
    compared = mdio.verify(out, tmp_path / "rest.dcd")
    assert compared.ok
    assert (compared.frames_compared, compared.frames_by_program) == (48, 50)


@pytest.mark.filterwarnings("ignore:.*times do not ascend")
def test_threads_share_a_writer(tmp_path):
    writer, start = mdio.Writer(tmp_path / "a.zarr", every_s=0), threading.Barrier(4)

    def write(number):
        start.wait()
        for n in range(10):
            positions = np.full((2, 50, 3), 1000 * number + n, "f4")
            writer.write_block(positions, time=[n, n + 0.5], step=[1000 * number + n] * 2)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    writer.close()
    with mdio.open(tmp_path / "a.zarr") as layout:
        block = layout.read(0, layout.info.n_frames)
    marks = block.positions[:, 0, 0].astype(int).tolist()
    assert sorted(marks) == sorted(2 * [1000 * k + n for k in range(4) for n in range(10)])
    assert block.step.tolist() == marks


def test_what_a_writer_that_nobody_holds_cannot_store_is_told(tmp_path):
    (tmp_path / "a").mkdir()
    code = (
        "import mdio, numpy as np, shutil\n"
        f"writer = mdio.Writer({str(tmp_path / 'a' / 'a.zarr')!r})\n"
        f"other = mdio.Writer({str(tmp_path / 'b.zarr')!r})\n"
        f"third = mdio.Writer({str(tmp_path / 'a' / 'c.zarr')!r})\n"
        "for one in (writer, other, third):\n"
        "    one.write_block(np.zeros((9, 4, 3)))\n"
        f"shutil.rmtree({str(tmp_path / 'a')!r})\n"
        "del one, writer\n"
        "print('goes on')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "goes on" in done.stdout
    assert "a.zarr" in done.stderr and "c.zarr" in done.stderr
    assert mdio.open(tmp_path / "b.zarr").info.n_frames == 9


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(OutputError, match=r"b.a\.zarr: .*b is no folder; make it"):
        mdio.Writer(tmp_path / "b" / "a.zarr")


def test_a_program_that_goes_to_another_folder(tmp_path, monkeypatch):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    for name in ("a.zarr", "a.h5md"):
        with mdio.Writer(name) as writer:
            writer.write_block(frames_of(0, 3))
            monkeypatch.chdir(tmp_path / "other")
        assert_frames(tmp_path / "one" / name, 3)
        assert writer.result.out == name
        monkeypatch.chdir(tmp_path / "one")
        with pytest.raises(OutputError, match=f"^{name}: exists already"):
            mdio.Writer(name)
    assert not list((tmp_path / "other").iterdir())


@pytest.mark.parametrize(
    ("name", "options"),
    [("a.xtc", {}), ("a.segments", {"storage": mdio.Storage(container="xtc")}), ("a.dcd", {})],
)
def test_what_a_format_loses_is_told_with_the_first_frame(tmp_path, name, options):
    frames = {"positions": frames_of(0, 2), "velocities": frames_of(0, 2)}
    with pytest.warns() as told, mdio.Writer(tmp_path / name, **options) as writer:
        writer.write_block(**frames)
        early = [str(one.message) for one in told]
        writer.write_block(**frames)
    assert any("velocities: left out" in text for text in early)
    assert any("rounds positions to 0.01" in text for text in early) == (name != "a.dcd")
    assert len(told) == len(early)
    assert {one.filename for one in told} == {__file__}
    with pytest.raises(PlanError, match=f"{name}: velocities=True, but it cannot hold"):
        mdio.Writer(tmp_path / name, force=True, velocities=True, **options).write_block(**frames)


def test_rounding_that_is_asked_for_is_not_told(tmp_path):
    with mdio.Writer(tmp_path / "a.xtc", precision=0.1) as writer:
        writer.write_block(frames_of(0, 2))


def test_going_on_with_segments_that_round(adk, tmp_path):
    mdio.split(adk["xtc"], tmp_path / "a.segments", 2)
    block = mdio.open(adk["xtc"]).read(0, 2)
    told = r"positions are rounded to 0\.01 angstrom"
    writer = mdio.Writer(tmp_path / "a.segments", append=True)
    with pytest.warns(UserWarning, match=told) as warned:
        writer.write_block(block.positions + np.float32(0.0012), time=[500, 501])
    assert warned[0].filename == __file__
    writer.close()
    universe = mda.Universe(adk["psf"], adk["xtc"])
    universe.trajectory.ts.time = 550
    writer = mdio.Writer(tmp_path / "a.segments", append=True)
    with pytest.warns(UserWarning, match=told) as warned:
        writer.write(universe.atoms)
    assert warned[0].filename == __file__
    writer.close()
    writer = mdio.Writer(tmp_path / "a.segments", append=True, velocities=True)
    frames = {"positions": block.positions, "velocities": block.positions, "time": [600, 601]}
    with pytest.warns(UserWarning, match=told), pytest.raises(PlanError, match="velocities=True"):
        writer.write_block(**frames)


@pytest.mark.parametrize("container", ["xtc", "dcd", None])
def test_a_restart_gives_velocities_that_the_output_does_not_hold(tmp_path, container):
    out = tmp_path / ("a.segments" if container else "a.zarr")
    frames = {"positions": frames_of(0, 5), "velocities": frames_of(0, 5)}
    if container is None:
        del frames["velocities"]
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        with mdio.Writer(out, storage=mdio.Storage(container=container)) as writer:
            writer.write_block(**frames)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with mdio.Writer(out, append=True) as writer:
            for n in range(5, 7):
                writer.write_block(frames_of(n, n + 1), velocities=frames_of(n, n + 1))
    with mdio.open(out) as layout:
        assert layout.info.n_frames == 7 and not layout.info.has_velocities
    assert sum("holds no velocities: left out" in str(one.message) for one in told) == 1


@pytest.mark.parametrize("dt_ps", [1.0, 30.0])
def test_a_restart_that_gives_steps_alone(tmp_path, dt_ps):
    out = tmp_path / "a.zarr"
    with mdio.Writer(out, dt_ps=2.0) as writer:
        writer.write_block(frames_of(0, 10), step=500 * np.arange(10))
    with (
        pytest.warns(UserWarning, match="its last 4 frames, from 12 ps on, are replaced"),
        mdio.Writer(out, append=True, dt_ps=dt_ps) as writer,
    ):
        for n in range(6, 12):
            writer.write_block(frames_of(n, n + 1), step=500 * n)
    with mdio.open(out) as layout:
        block = layout.read(0, layout.info.n_frames)
    assert block.step.tolist() == [500 * n for n in range(12)]
    assert_array_equal(block.positions, frames_of(0, 12))
    assert block.time[5:8].tolist() == [10, 10 + dt_ps, 10 + 2 * dt_ps]


def test_a_restart_whose_steps_are_not_there(tmp_path):
    with mdio.Writer(tmp_path / "a.segments") as writer:
        writer.write_block(frames_of(0, 10))
    with mdio.Writer(tmp_path / "a.segments", append=True) as writer:
        with pytest.raises(OutputError, match="holds no steps by which"):
            writer.write_block(frames_of(5, 6), step=5)
        writer.write_block(frames_of(10, 11))
    assert_frames(tmp_path / "a.segments", 11)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"every_s": "x"}, "every_s='x'; give seconds"),
        ({"every_s": -1}, "every_s=-1; give seconds"),
        ({"dt_ps": None}, "dt_ps=None; give ps"),
        ({"dt_ps": np.nan}, "dt_ps=nan; give ps"),
        ({"dt_ps": 0}, "dt_ps=0; give ps"),
        ({"n_atoms": 2.5}, "n_atoms=2.5; give a whole number"),
        ({"n_atoms": -3}, "n_atoms=-3; give a whole number"),
        ({"n_atoms": "5"}, "n_atoms='5'; give a whole number"),
        ({"atoms": "name CA"}, "atoms='name CA'; give an AtomGroup"),
        ({"append": True, "force": True}, "give one"),
    ],
)
def test_arguments_that_make_no_sense(tmp_path, wrong, says):
    with pytest.raises((PlanError, TypeError), match=r"a\.zarr: .*" + re.escape(says)) as error:
        mdio.Writer(tmp_path / "a.zarr", **wrong)
    assert isinstance(error.value, PlanError) or "atoms" in wrong


@pytest.mark.parametrize("name", ["positions", "box", "velocities"])
def test_numbers_beyond_float32(tmp_path, name):
    arrays = {"positions": np.ones((5, 3)), "velocities": np.ones((5, 3)), "box": np.full(6, 60.0)}
    arrays[name].flat[0] = 1e300
    writer = mdio.Writer(tmp_path / "a.zarr")
    with pytest.raises(ValueError, match=rf"a\.zarr: {name} .*overflow"):
        writer.write_block(**arrays)
    arrays["positions"][:] = np.inf  # which is what it is
    arrays[name].flat[0] = 60.0
    with pytest.warns(UserWarning, match="NaN or infinite"):
        writer.write_block(**arrays)
        writer.close()


def test_segments_that_were_copied_and_then_gone_on_with_are_not_repaired(adk, tmp_path):
    out = tmp_path / "a.segments"
    mdio.split(adk["dcd"], out, 7)
    with mdio.Writer(out, append=True) as writer:
        writer.write_block(np.ones((60, 3341, 3)), time=100 + np.arange(60))
    assert mdio.verify(out, adk["dcd"]).frames_compared == 98
    segment = next(out.rglob("seg-000000.dcd"))
    data = segment.read_bytes()
    segment.write_bytes(data[:5000] + b"x" + data[5001:])
    with pytest.raises(SourceError, match=r"a\.segments: some segments were copied.*nothing was"):
        mdio.repair(out, adk["dcd"])
    segment.write_bytes(data)
    assert mdio.verify(out).ok


def test_atoms_that_change_are_told(adk, tmp_path):
    universe = mda.Universe(adk["psf"], adk["dcd"])
    alphas, carbons = universe.select_atoms("name CA"), universe.select_atoms("name C")
    with mdio.Writer(tmp_path / "a.zarr") as writer:
        writer.write(alphas)
        writer.write(universe.select_atoms("name CA"))
    for others in (alphas[::-1], carbons):
        with mdio.Writer(tmp_path / "b.zarr", force=True) as writer:
            writer.write(alphas)
            with pytest.warns(UserWarning, match="frame 1 has other atoms") as told:
                writer.write(others)
            writer.write(others)  # which is said once
        assert len(told) == 1
        assert told[0].filename == __file__
    universe.trajectory[1]
    for begun in ({}, {"atoms": carbons}):
        with (
            pytest.raises(OutputError, match=r"atom 0 is MET:CA there and MET:C here"),
            mdio.Writer(tmp_path / "a.zarr", append=True, **begun) as writer,
        ):
            writer.write(carbons)
    assert mdio.open(tmp_path / "a.zarr").info.n_frames == 2


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_fewer_frames_stay_than_a_chunk_of_h5md_has(tmp_path, compression):
    out = tmp_path / "a.h5md"
    positions = np.random.default_rng(0).random((30, 100, 3), np.float32)
    with mdio.Writer(out, compression=compression) as writer:
        writer.write_block(positions, time=np.arange(30.0))
    with (
        pytest.warns(UserWarning, match="last 25 frames, from 5 ps on, are replaced"),
        mdio.Writer(out, append=True) as writer,
    ):
        writer.write_block(positions[:1], time=[5.0])
    with mdio.open(out) as layout:
        block = layout.read(0, 6)
    assert layout.info.n_frames == 6 and mdio.verify(out).ok
    assert np.array_equal(block.positions, positions[[0, 1, 2, 3, 4, 0]])
    with mdio.Writer(out, append=True) as writer:
        writer.write_block(positions, time=10 + np.arange(30.0))
    assert mdio.verify(out).ok
    assert np.array_equal(mdio.open(out).read(6, 36).positions, positions)
