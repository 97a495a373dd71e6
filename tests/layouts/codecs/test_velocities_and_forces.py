"""Velocities and forces rounded to steps of their own, beside what MDAnalysis reads."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import MDAnalysis as mda
import numpy as np
import pytest
import zarr
from MDAnalysis.coordinates.memory import MemoryReader
from suites.outputs import as_options

import mdio
from mdio.cli.main import main
from mdio.converters.verify import verify
from mdio.core.errors import PlanError

STEPS = {"velocities": 0.01, "forces": 0.25}
H5MD_NAMES = {"velocities": "velocity", "forces": "force"}


def write_trr(path: Path, n_frames: int = 9, first_ps: float = 0.0, seed: int = 3) -> Path:
    """Write random walks of 60 atoms by MDAnalysis."""
    rng = np.random.default_rng(seed)
    shape = (n_frames, 60, 3)
    numbers = {
        "coordinate_array": 20 + rng.normal(0, 3, shape),
        "velocities": rng.normal(0, 4, shape),
        "forces": rng.normal(0, 60, shape),
    }
    numbers = {name: values.astype(np.float32) for name, values in numbers.items()}
    universe = mda.Universe.empty(60, trajectory=False, velocities=True, forces=True)
    cells = np.tile([40.0, 40, 40, 90, 90, 90], (n_frames, 1))
    universe.trajectory = MemoryReader(**numbers, order="fac", dimensions=cells, dt=2.0)
    with mda.Writer(str(path), 60) as writer:
        for ts in universe.trajectory:
            ts.time = first_ps + 2.0 * ts.frame
            writer.write(universe.atoms)
    return path


def read_by_mdanalysis(path: Path) -> dict[str, np.ndarray]:
    """Return velocities and forces of all frames, (F, A, 3) float32."""
    with mda.coordinates.TRR.TRRReader(str(path)) as reader:
        frames = [{name: getattr(ts, name).copy() for name in STEPS} for ts in reader]
    return {name: np.stack([frame[name] for frame in frames]) for name in STEPS}


@pytest.fixture
def trr(tmp_path: Path) -> Path:
    return write_trr(tmp_path / "md.trr")


def rounded(values: np.ndarray, step: float) -> np.ndarray:
    return (np.rint(values.astype(np.float64) / step) * step).astype(np.float32)


@pytest.mark.parametrize(
    ("precision", "compression"),
    [("none", None), (0.01, None), (0.01, "rigid"), (0.01, "zstd"), (0.01, "lz4"), ("none", "lz4")],
)
def test_zarr_holds_multiples_of_the_steps(
    trr: Path, tmp_path: Path, precision: float | str, compression: str | None
) -> None:
    out = tmp_path / "md.zarr"
    mdio.convert(
        trr,
        out,
        precision=precision,
        storage=mdio.Storage(precision_velocities=0.01, precision_forces=0.25),
        compression=compression,
    )
    source = read_by_mdanalysis(trr)
    theirs = zarr.open_group(out)["particles/trajectory"]
    with mdio.open(out) as layout:
        assert layout.info.field_precisions == STEPS
        block = layout.read(0, 9)
        some = layout.read(4, 7, atoms=[3, 50])
        for name, step in STEPS.items():
            wanted = rounded(source[name], step)
            np.testing.assert_array_equal(getattr(block, name), wanted)
            np.testing.assert_array_equal(getattr(some, name), wanted[4:7][:, [3, 50]])
            np.testing.assert_array_equal(theirs[f"{H5MD_NAMES[name]}/value"][:], wanted)
        manifest = layout.manifest
    assert manifest is not None
    assert manifest["field_precisions"] == STEPS
    assert manifest["field_error_bounds"] == {"velocities": 0.005, "forces": 0.125}
    assert verify(out, trr).ok


def test_rounded_again_nothing_changes(trr: Path, tmp_path: Path) -> None:
    options = {"precision_velocities": 0.01, "precision_forces": 0.25}
    mdio.convert(trr, tmp_path / "a.zarr", **as_options(options))
    mdio.convert(tmp_path / "a.zarr", tmp_path / "b.zarr", **as_options(options))
    with mdio.open(tmp_path / "a.zarr") as a, mdio.open(tmp_path / "b.zarr") as b:
        for name in STEPS:
            mine, theirs = getattr(a.read(0, 9), name), getattr(b.read(0, 9), name)
            np.testing.assert_array_equal(mine, theirs)


def test_h5md_has_steps_of_powers_of_two(trr: Path, tmp_path: Path) -> None:
    out = tmp_path / "md.h5md"
    mdio.convert(trr, out, storage=mdio.Storage(precision_velocities=0.01, precision_forces=0.3))
    source = read_by_mdanalysis(trr)
    with h5py.File(out) as file:
        for name, step in {"velocities": 2**-7, "forces": 0.25}.items():
            found = file[f"particles/trajectory/{H5MD_NAMES[name]}/value"][:]
            np.testing.assert_array_equal(found / step, np.rint(found / step))
            assert 0 < np.abs(found - source[name]).max() <= step / 2
    assert verify(out, trr).ok


@pytest.mark.parametrize("suffix", ["zarr", "h5md"])
def test_verify_finds_what_is_off_by_more(trr: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"md.{suffix}"
    mdio.convert(trr, out, storage=mdio.Storage(precision_velocities=0.5))
    other = tmp_path / "other.trr"
    other.write_bytes(trr.read_bytes())
    assert verify(out, other).ok
    with mda.coordinates.TRR.TRRReader(str(trr)) as reader, mda.Writer(str(other), 60) as writer:
        universe = mda.Universe.empty(60, trajectory=True, velocities=True, forces=True)
        for ts in reader:
            universe.trajectory.ts.positions = ts.positions
            universe.trajectory.ts.velocities = ts.velocities + (0.6 if ts.frame == 4 else 0)
            universe.trajectory.ts.forces = ts.forces
            universe.trajectory.ts.dimensions = ts.dimensions
            universe.trajectory.ts.time = ts.time
            universe.trajectory.ts.frame = ts.frame
            writer.write(universe.atoms)
    found = [line for line in verify(out, other).bad if "velocities differ by up to" in line]
    assert found
    assert "0.25 is allowed" in found[0]


@pytest.mark.parametrize("suffix", ["zarr", "h5md"])
def test_steps_stay_when_frames_are_added(trr: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"md.{suffix}"
    more = write_trr(tmp_path / "more.trr", 4, first_ps=18.0, seed=4)
    mdio.convert(trr, out, storage=mdio.Storage(precision_velocities=0.25))
    mdio.append(more, out)
    wanted = rounded(
        np.concatenate([read_by_mdanalysis(p)["velocities"] for p in (trr, more)]), 0.25
    )
    with mdio.open(out) as layout:
        assert layout.info.field_precisions == {"velocities": 0.25}
        np.testing.assert_array_equal(layout.read(0, 13).velocities, wanted)


def test_repair_rounds_as_before(trr: Path, tmp_path: Path) -> None:
    out = tmp_path / "md.zarr"
    mdio.convert(trr, out, storage=mdio.Storage(precision_velocities=0.01))
    shard = out / "particles/trajectory/velocity/value/c.0.0.0"
    before = shard.read_bytes()
    shard.write_bytes(before[:100] + bytes([before[100] ^ 1]) + before[101:])
    mdio.repair(out, against=trr)
    assert shard.read_bytes() == before


def test_plan_and_info_tell(trr: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "md.zarr")
    options = ["--precision-velocities", "0.01", "--precision-forces", "0.25"]
    assert main(["convert", str(trr), out, *options, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "velocities   rounded to 0.01 angstrom/ps, so off by at most 0.005" in told
    assert "forces       rounded to 0.25 kJ/(mol angstrom), so off by at most 0.125" in told
    assert main(["convert", str(trr), out, *options, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plan"]["field_precisions"] == STEPS
    assert main(["info", out]) == 0
    assert "rounded to 0.25 kJ/(mol angstrom)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("a.trr", {}, "does not go together with trr files"),
        ("a.segments", {}, "does not go together with segments of trr"),
        ("a.refs", {}, "does not go together with references"),
        ("a.h5md", {"contiguous": True}, "does not go together with --contiguous"),
        ("a.h5md", {"flavour": "gromacs"}, "does not go together with --flavour gromacs"),
        ("a.zarr", {"precision_velocities": -1.0}, "give a positive step"),
        (
            "a.h5md",
            {"precision_velocities": 1e-60},
            "--precision-velocities 1e-60: give a positive",
        ),
    ],
)
def test_what_cannot_round_says_so(
    trr: Path, tmp_path: Path, name: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        mdio.convert(trr, tmp_path / name, **as_options({"precision_velocities": 0.01, **options}))


def test_a_source_without_velocities(trr: Path, tmp_path: Path) -> None:
    mdio.convert(trr, tmp_path / "md.xtc")
    with pytest.raises(PlanError, match=r"md\.xtc: has no velocities; leave --precision-veloc"):
        mdio.convert(
            tmp_path / "md.xtc",
            tmp_path / "md.zarr",
            storage=mdio.Storage(precision_velocities=0.01),
        )
