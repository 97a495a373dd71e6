"""``mdio convert --mpi`` and ``mdio split --mpi`` on real ranks."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from suites.outputs import as_options
from suites.under_mpi import CHECKS, needs_mpi, run_under_mpi, start_under_mpi

import mdio

pytestmark = needs_mpi
CLI = ("-m", "mdio.cli.main")


@pytest.fixture(scope="module")
def bad(adk, tmp_path_factory):
    """An XTC with damage in the last third."""
    path = tmp_path_factory.mktemp("bad") / "bad.xtc"
    data = bytearray(adk["xtc"].read_bytes())
    start = len(data) * 2 // 3
    data[start : start + 64] = b"\xff" * 64
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 7])
def test_equal_to_serial(adk, bad, tmp_path, n_ranks):
    code, out, err = run_under_mpi(
        n_ranks, "-m", "mpi4py", CHECKS / "check_convert.py", adk["xtc"], bad, tmp_path
    )
    assert code == 0, out + err
    assert f"conversions equal on {n_ranks} ranks" in out


def test_command_line(adk, tmp_path):
    out = tmp_path / "a.zarr"
    words = ("convert", adk["xtc"], out, "--mpi", "--json", "--verify", "-s", adk["psf"])
    code, text, err = run_under_mpi(3, *CLI, *words, "--group", "ca=name CA")
    assert code == 0, err
    report = json.loads(text)
    assert (report["workers"], report["verify"]["ok"]) == (3, True)
    assert dict(mdio.open(out).info.groups) == {"ca": 214}
    code, text, err = run_under_mpi(2, *CLI, *words)
    assert (code, text) == (1, "")
    assert err.count("exists") == 1
    mdio.convert(adk["xtc"], out, stop=50, force=True)
    code, text, err = run_under_mpi(2, *CLI, "append", *words[1:6])
    assert code == 0, err
    assert json.loads(text)["verify"]["frames_compared"] == 48


def test_a_damaged_frame_met_by_one_rank(bad, tmp_path):
    code, out, err = run_under_mpi(4, *CLI, "convert", bad, tmp_path / "a.h5md", "--mpi")
    assert (code, out) == (1, "")
    assert err.count("bad.xtc") == 1 and "frame" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.zarr", "a.h5md"])
def test_a_killed_rank_ends_the_job_and_the_former_output_stays(adk, tmp_path, name):
    out = tmp_path / name
    mdio.convert(adk["dcd"], out, stop=5)
    there = len(list(tmp_path.iterdir()))
    words = ("convert", *[adk["dcd"]] * 600, out, "--mpi", "--force")
    process = start_under_mpi(3, *CLI, *words)
    limit = time.monotonic() + 60
    ranks: list[int] = []
    while (len(ranks) < 3 or len(list(tmp_path.iterdir())) <= there) and time.monotonic() < limit:
        ranks = ranks if len(ranks) == 3 else _ranks(process.pid)  # known before there is work
        time.sleep(0.005)
    begun = time.monotonic()
    os.kill(max(ranks), signal.SIGKILL)
    text, err = process.communicate(timeout=60)
    assert time.monotonic() - begun < 30
    assert process.returncode != 0, text + err
    assert mdio.open(out).info.n_frames == 5
    assert mdio.verify(out).ok
    mdio.convert(adk["dcd"], out, force=True)
    assert len(list(tmp_path.iterdir())) == there  # what the killed ranks had begun is gone


@pytest.mark.parametrize(
    ("name", "how"),
    [("a.zarr", ()), ("a.h5md", ()), ("a.segments", ("--segments", "3"))],
)
def test_all_ranks_killed_at_once_leave_nothing_behind_the_next_run(adk, tmp_path, name, how):
    """The temporaries of the killed ranks go, wherever these were; the former output stays."""
    out = tmp_path / name
    words = ("convert", adk["dcd"], out, "--mpi", "--force", "--quiet", *how)

    def convert(*stop, rank=0, call=0):
        told = run_under_mpi(2, CHECKS / "faulty/run_killed.py", rank, call, "KILL", *words, *stop)[
            2
        ]
        return int(told.split(" calls")[0].split()[-1]) if " calls" in told else None

    def names():
        return sorted(path.name for path in tmp_path.iterdir())

    n_calls = [convert(rank=rank) for rank in (0, 1)]
    assert convert("--stop", 5)
    there = names()
    n_left = 0
    for rank, part in ((0, 0.6), (0, 0.95), (1, 0.7)):
        assert convert(rank=rank, call=max(1, int(part * n_calls[rank]))) is None
        assert mdio.open(out).info.n_frames in (5, 98)
        assert mdio.verify(out).ok
        n_left += names() != there
        assert convert("--stop", 5) is not None
        assert names() == there
    assert n_left  # or nothing was tried


def _ranks(pid):
    """Return the processes that run mdio below `pid`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            group = os.getpgid(int(path.parent.name))
        except (OSError, ValueError):
            continue
        if b"mdio.cli.main" in words and b"-n" not in words and group != os.getpgid(0):
            found.append(int(path.parent.name))
    return [one for one in found if _is_below(one, pid)]


def _is_below(one, ancestor):
    while one > 1:
        if one == ancestor:
            return True
        stat = Path(f"/proc/{one}/stat").read_text()
        one = int(stat.rsplit(")", 1)[1].split()[1])
    return False


@pytest.fixture(scope="module")
def parts(adk, tmp_path_factory):
    """Restarts that overlap, of the same simulation: frames 0 to 59, and 50 to 97."""
    folder = tmp_path_factory.mktemp("parts")
    for name, start, stop in (("b1", 0, 60), ("a2", 50, 98)):
        mdio.convert(adk["xtc"], folder / f"{name}.xtc", start=start, stop=stop)
    return [folder / "a2.xtc", folder / "b1.xtc"]


@pytest.mark.parametrize("n_ranks", [2, 3])
@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("a.zarr", ("--chunk-frames", "4")),
        ("a.h5md", ("--chunk-frames", "4")),
        ("a.segments", ("--segments", "4")),
    ],
)
def test_restarts_are_joined_and_appended(adk, parts, tmp_path, n_ranks, name, how):
    """Joined at once, or one appended to the other: each frame once, as the whole file has them."""
    joined, added = tmp_path / f"joined-{name}", tmp_path / name
    code, out, err = run_under_mpi(n_ranks, *CLI, "convert", *parts, joined, "--mpi", *how)
    assert code == 0, err
    assert (out + err).count("frames 50 to 59") == 1  # of the first part, told once
    options = {"segments": 4} if name == "a.segments" else {"chunk_frames": 4}
    mdio.convert(parts[1], added, **as_options(options))
    code, out, err = run_under_mpi(n_ranks, *CLI, "append", parts[0], added, "--mpi")
    assert code == 0, err
    with mdio.open(adk["xtc"]) as layout:
        whole = layout.read(0, 98)
    for path in (joined, added):
        assert mdio.verify(path).ok
        with mdio.open(path) as layout:
            block = layout.read(0, layout.info.n_frames)
        assert block.n_frames == 98
        for field in ("positions", "box", "time"):
            found, expected = getattr(block, field), getattr(whole, field)
            # Cells lose their last bit on the way through another XTC.
            assert np.allclose(found, expected, rtol=1e-6, atol=0), field


def test_appending_again_under_mpi_adds_nothing_and_is_told_once(parts, tmp_path):
    out = tmp_path / "a.zarr"
    mdio.convert(parts, out)
    before = mdio.open(out).uuid_at(out)
    code, said, err = run_under_mpi(3, *CLI, "append", parts[0], out, "--mpi")
    assert code == 0 and said.count("already has all of these frames") == 1, said + err
    assert mdio.open(out).uuid_at(out) == before
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


@pytest.mark.parametrize(("name", "code"), [("TERM", 143), ("INT", 130)])
def test_what_is_kept_is_told_where_a_signal_ends_all_ranks(adk, tmp_path, name, code):
    """As where a job's time is up: rank 0 speaks, and the others leave that to it."""
    source = tmp_path / "a.dcd"
    source.write_bytes(adk["dcd"].read_bytes())

    def convert(call, *more, out="a.zarr", n_ranks=3):
        words = ("convert", *[source] * 12, tmp_path / out, "--mpi", "--quiet", *more)
        words += ("--overlap", "keep-all", "--chunk-frames", "2", "--stripe-size", "64K")
        return run_under_mpi(n_ranks, CHECKS / "faulty/run_killed.py", 0, call, name, *words)

    n_calls = int(convert(0, out="b.zarr")[2].split(" calls")[0].split()[-1])
    found, text, err = convert(n_calls // 2)
    assert (found, text) == (code, ""), err
    line = next(line for line in err.splitlines() if line.startswith("mdio: "))
    assert "are kept in" in line and "--resume" in line, err
    found, _, err = convert(0, "--resume", n_ranks=2)
    assert found == 0, err
    assert mdio.open(tmp_path / "a.zarr").info.n_frames == 12 * 98
    assert "a.zarr.mdio" not in " ".join(path.name for path in tmp_path.iterdir())


@pytest.mark.parametrize(("name", "code"), [("TERM", 143), ("INT", 130)])
@pytest.mark.parametrize("how", [(), ("--mpio",), ("--collective",)])
def test_a_signal_is_not_lost_in_a_callback(adk, tmp_path, how, name, code):
    words = ("convert", *[adk["dcd"]] * 4, tmp_path / "a.h5md", "--mpi", "--quiet", *how)
    words += ("--overlap", "keep-all", "--chunk-frames", "2", "--stripe-size", "64K")
    found, text, err = run_under_mpi(2, CHECKS / "faulty/run_swallowed.py", 3, name, *words)
    assert (found, text) == (code, ""), err
    assert "Exception ignored" not in err  # Python would print the one that it swallows
    line = next(line for line in err.splitlines() if line.startswith("mdio"))
    assert "are kept in" in line and "--resume" in line, err
    found, _, err = run_under_mpi(2, *CLI, *words, "--resume")
    assert found == 0 and "taken from an earlier run" in err, err
    assert mdio.open(tmp_path / "a.h5md").info.n_frames == 4 * 98
    assert mdio.verify(tmp_path / "a.h5md").ok


def test_a_signal_to_all_ranks_ends_an_analysis(adk, tmp_path):
    words = ("analyze", "rmsd", adk["dcd"], "-s", adk["psf"], "--select", "name CA", "--mpi")
    killed = (CHECKS / "faulty/run_killed.py", 0, 1, "TERM")
    code, text, err = run_under_mpi(2, *killed, *words, "-o", tmp_path / "a.csv")
    assert (code, text) == (143, ""), err
    assert err.count("mdio: ended by a signal") == 1, err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["--mpio", "--collective"])
def test_many_replicas_through_parallel_hdf5(adk, tmp_path, how):
    """By all ranks one after the other, where each rank would take whole ones otherwise."""
    sources = {f"r{number}": tmp_path / f"r{number}.dcd" for number in range(8)}
    for path in sources.values():
        path.symlink_to(adk["dcd"])
    out = tmp_path / "all.h5md"
    words = ("convert", *sources.values(), out, "--ensemble", "--mpi", how, "-s", adk["psf"])
    code, said, err = run_under_mpi(2, *CLI, *words)
    assert code == 0 and said.count("2 workers") == 8, said + err
    with mdio.open(adk["dcd"]) as source:
        want = source.read(0, 98).positions
    for label in sources:
        with mdio.open(out, group=label) as replica:
            assert np.array_equal(replica.read(0, 98).positions, want)


def test_rank_0_alone_tells_what_is_in_a_file(adk):
    for words in (("info", adk["dcd"]), ("model", "predict", "comet", "--ranks", "24")):
        code, one, err = run_under_mpi(1, *CLI, *words)
        assert (code, err) == (0, "")
        assert run_under_mpi(3, *CLI, *words) == (0, one, "")
    code, said, err = run_under_mpi(3, *CLI, "info", "none.xtc")
    assert (code, said, err.count("none.xtc")) == (1, "", 1), err
