"""Parts of a run appended in any order, against a model: nothing is lost, and nothing untrue told.

MDIO_EXAMPLES=1000 has hypothesis try so many; MDIO_SEED=2 has it try others.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import MDAnalysis as mda
import numpy as np
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from suites.outputs import as_options

import mdio
from mdio.core.errors import SourceError

N_ATOMS, LAST = 5, 24
LAYOUTS = {
    "zarr": {"chunk_frames": 2},
    "h5md": {"chunk_frames": 2},
    "segments": {},
    "h5md gzip": {"chunk_frames": 2, "compression": "gzip:1"},
    "zarr rounded": {"chunk_frames": 2, "precision": 0.05},
}
EXAMPLES = int(os.environ.get("MDIO_EXAMPLES", "40"))
SEED = int(os.environ.get("MDIO_SEED", "1"))
PHASES = (Phase.generate,)

Part = dict[int, int]
"""Contents of the frames of a file, by time: 0, or those of another branch or a corrected frame."""


@st.composite
def parts(draw) -> Part:
    begin = draw(st.integers(0, LAST - 1))
    times = list(range(begin, draw(st.integers(begin + 1, LAST)) + 1, draw(st.integers(1, 3))))
    kind = draw(st.sampled_from(["whole", "whole", "whole", "holes", "corrected", "restarted"]))
    some = draw(st.sets(st.sampled_from(times), max_size=4))
    if kind == "holes":
        return {time: 0 for time in times if time not in some or time == times[0]}
    branch = draw(st.integers(1, 2))
    since = draw(st.sampled_from(times)) if kind == "restarted" else LAST + 1
    return {
        time: branch if time >= since or (kind == "corrected" and time in some) else 0
        for time in times
    }


def write(path: Path, part: Part) -> Path:
    universe = mda.Universe.empty(N_ATOMS, trajectory=True)
    with mda.Writer(str(path), N_ATOMS) as writer:
        for time, content in sorted(part.items()):
            ts = universe.trajectory.ts
            random = np.random.default_rng([time, content])
            ts.positions = random.uniform(0, 20, (N_ATOMS, 3)).astype("f4")
            ts.time, ts.data["step"] = 2.0 * time, 100 * time
            ts.dimensions = [20 + time, 30, 30, 90, 90, 90]
            writer.write(universe.atoms)
    return path


def seen(out: Path, folder: Path) -> Part:
    """Return what is in an output, told by what all frames there may be are."""
    with mdio.open(out) as layout:
        block = layout.read(0, layout.info.n_frames)
    times = np.rint(block.time / 2).astype(int).tolist()
    assert times == sorted(set(times))
    return {
        time: next(
            content
            for content in range(3)
            if np.allclose(
                block.positions[at],
                np.random.default_rng([time, content]).uniform(0, 20, (N_ATOMS, 3)),
                atol=0.1,
            )
        )
        for at, time in enumerate(times)
    }


def must_be_put_in(old: Part, new: Part) -> bool:
    """Return whether nobody can doubt where frames belong: all that both have are the same.

    They have the first and the last frame of the time that both span in common, or span none.
    """
    common = old.keys() & new.keys()
    if any(old[time] != new[time] for time in common):
        return False
    begin, end = max(min(old), min(new)), min(max(old), max(new))
    return begin > end or {begin, end} <= common


def told(notes: list[str], what: str) -> int:
    counts = [re.search(rf"(\d+) frames? .*{what}", note) for note in notes]
    return sum(int(match[1]) for match in counts if match)


def check(old: Part, new: Part, after: Part, notes: list[str], overlap: str | None) -> None:
    """See that all frames are there, and that notes tell what is not."""
    wins = old if overlap == "keep-first" else new
    other = new if wins is old else old
    assert {time: after.get(time) for time in wins} == wins
    assert after.items() <= {*old.items(), *new.items()}
    gone = other.keys() - wins.keys() - after.keys()
    assert len(gone) == told(notes, "dropped, since") if wins is new else True
    differ = {time for time in old.keys() & new.keys() if old[time] != new[time]}
    if wins is new:
        assert len(differ) == told(notes, "replaced by those of")
    else:
        assert len(differ) + len(gone) == told(notes, "left out, since .* are kept there")
    if must_be_put_in(old, new):
        assert not gone


@seed(SEED)
@settings(max_examples=EXAMPLES, deadline=None, database=None, phases=PHASES)
@given(
    given_parts=st.lists(parts(), min_size=2, max_size=4),
    kind=st.sampled_from(sorted(LAYOUTS)),
    overlap=st.sampled_from([None, None, "keep-last", "keep-first", "error"]),
    ending=st.sampled_from(["xtc", "trr"]),
)
def test_appending_is_converting_the_union(given_parts, kind, overlap, ending):
    folder = Path(tempfile.mkdtemp())
    try:
        layout, options = kind.partition(" ")[0], LAYOUTS[kind]
        paths = [write(folder / f"{n}.{ending}", part) for n, part in enumerate(given_parts)]
        out = folder / f"out.{layout}"
        mdio.convert(paths[0], out, **as_options(options))
        expected = dict(given_parts[0])
        for path, part in zip(paths[1:], given_parts[1:], strict=True):
            uuid = mdio.open(out).manifest["uuid"]
            try:
                result = mdio.append(path, out, overlap=overlap)
            except SourceError as error:
                assert "--overlap" in str(error)
                if overlap == "error":
                    shared = expected.keys() & part.keys()
                    apart = max(part) < min(expected) or max(expected) < min(part)
                    assert shared or not apart
                else:
                    assert overlap is None and not must_be_put_in(expected, part)
                assert mdio.open(out).manifest["uuid"] == uuid
                assert seen(out, folder) == expected
                continue
            after = seen(out, folder)
            check(expected, part, after, list(result.plan.notes), overlap)
            expected = after
        once = folder / f"once.{layout}"
        mdio.convert(write(folder / f"union.{ending}", expected), once, **as_options(options))
        with mdio.open(out) as mine, mdio.open(once) as theirs:
            a, b = (one.read(0, one.info.n_frames) for one in (mine, theirs))
            for name in ("positions", "time", "step", "box"):
                np.testing.assert_array_equal(getattr(a, name), getattr(b, name), name)
        source = mdio.open(out).manifest["source"]
        files = [Path(one["path"]) for one in source.get("files", [source])]
        found = mdio.verify(out, against=files)
        assert found.ok, found.bad
    finally:
        shutil.rmtree(folder)
