"""Native files: plans, what does not fit, what fails."""

import dataclasses
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from native_cases import (
    META,
    write,
)

import mdio
from mdio.core.errors import OutputError, PlanError
from mdio.layouts.native import NATIVE_FORMATS
from mdio.layouts.native.writer import XTCFileWriter
from mdio.layouts.plan import WriteOptions
from mdio.layouts.registry import load_class, writer_class
from mdio.layouts.writer import PieceRecord
from mdio.testing.blocks import info_of, random_block

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:MDAnalysis")


def test_xtc_takes_the_precision_of_its_source() -> None:
    info = info_of(random_block(2, 12), precision=10 / 12345.0)
    for asked in (None, "auto"):
        plan = XTCFileWriter.plan_for(info, WriteOptions(precision=asked))
        assert plan.precision_source == "xtc"
        assert np.float32(10 / plan.precision) == 12345
    plan = XTCFileWriter.plan_for(info, WriteOptions(precision=0.1))
    assert (plan.precision, plan.precision_source) == (0.1, "asked")
    plan = XTCFileWriter.plan_for(info_of(random_block(2, 12)), WriteOptions())
    assert (plan.precision, plan.precision_source, plan.compression) == (0.01, None, "xtc")


@pytest.mark.parametrize("container", ["xtc", "trr", "dcd", "ncdf"])
def test_a_missing_piece_is_an_error(tmp_path: Path, container: str) -> None:
    block = random_block(6, 12)
    cls = writer_class(container)
    plan = cls.plan_for(info_of(block), WriteOptions()).replace(piece_frames=2)
    writer = cls(tmp_path / "a", plan, META)
    writer.create()
    for start in (0, 4):
        rows = block.frames(slice(start, start + 2))
        for item in writer.encode(start, rows):
            writer.store(item)
        writer.commit(PieceRecord(start, start + 2, {}, 0, rows.box, rows.time, rows.step))
    with pytest.raises(OutputError, match="frames 2 to 3"):
        writer.finish()
    writer.abort()


@pytest.mark.parametrize("container", ["xtc", "trr", "dcd", "ncdf"])
def test_plans(container: str) -> None:
    cls = writer_class(container)
    block = random_block(9, 20, velocities=True, forces=True)
    plan = cls.plan_for(info_of(block, n_frames=100_000), WriteOptions())
    fields = ("positions", "velocities", "forces")
    if container in ("trr", "ncdf"):
        assert (plan.native.fields, plan.notes) == (fields, ())
    else:
        assert plan.native.fields == ("positions",)
        left_out = f"{container} holds no velocities and no forces: left out"
        rounds = [note for note in plan.notes if "off by at most 0.005" in note]
        assert plan.notes == (left_out, *rounds)
        assert len(rounds) == (container == "xtc")
    decoded = 12 * 20 * len(plan.native.fields) * plan.piece_frames
    assert 7 << 20 < decoded <= 8 << 20
    assert (plan.layout, plan.n_files) == (container, 1)
    pickle.loads(pickle.dumps(plan))
    assert plan.to_json()["notes"] == plan.notes


@pytest.mark.parametrize("container", ["trr", "dcd", "ncdf"])
def test_planned_bytes_are_exact(tmp_path: Path, container: str) -> None:
    block = random_block(9, 20, velocities=True)
    writer = write(tmp_path / "a", container, block)
    assert (tmp_path / "a").stat().st_size == writer.plan.nbytes


@pytest.mark.parametrize(
    ("container", "options", "changes", "message"),
    [
        ("xtc", {"groups": {"ca": 3}}, {}, "--group"),
        ("ncdf", {"compression": "zstd"}, {}, "--compression"),
        ("dcd", {"precision": 0.01}, {}, "--precision"),
        ("xtc", {"precision": -1.0}, {}, "--precision"),
        ("xtc", {"precision": float("nan")}, {}, "--precision"),
        ("trr", {}, {"n_frames": 0}, "nothing to write"),
        ("trr", {}, {"n_atoms": 2**28}, "counts"),
        ("ncdf", {}, {"n_atoms": 2**29}, "counts"),
        ("dcd", {}, {"n_atoms": 2**29}, "counts"),
        ("xtc", {}, {"n_atoms": 2**28}, "counts"),
    ],
)
def test_plans_that_do_not_fit(container: str, options, changes, message: str) -> None:
    info = info_of(random_block(9, 20), **changes)
    with pytest.raises(PlanError, match=message):
        writer_class(container).plan_for(info, WriteOptions(**options))


def test_values_that_do_not_fit(tmp_path: Path) -> None:
    block = random_block(2, 12)
    block.step[1] = 2**31
    for container in ("trr", "xtc"):
        with pytest.raises(OutputError, match="step"):
            write(tmp_path / f"a.{container}", container, block)
    block = random_block(2, 12)
    block.positions[1] = 1e9
    with pytest.raises(OutputError):
        write(tmp_path / "b.xtc", "xtc", block)
    block = random_block(2, 12)
    block.box[0] = 0
    with pytest.raises(OutputError, match="unit cell"):
        write(tmp_path / "a.ncdf", "ncdf", block)


@pytest.mark.parametrize("first", [0, 1])
def test_a_frame_without_a_cell_before_others(tmp_path: Path, first: int) -> None:
    block = random_block(6, 12)
    block.box[first] = 0
    write(tmp_path / "a.trr", "trr", block)
    mdio.convert(tmp_path / "a.trr", tmp_path / "b.ncdf", start=first, step=2)
    boxes = mdio.open(tmp_path / "b.ncdf").read(0, 3).box
    assert not boxes[0].any()
    np.testing.assert_allclose(boxes[1:], block.box[first + 2 :: 2], rtol=1e-5)


@pytest.mark.parametrize("container", ["xtc", "ncdf"])
def test_full_disk(tmp_path: Path, container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import os

    from mdio.core.files.publish import publish

    def full(fd: int, data: object, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    target = tmp_path / "sub" / f"a.{container}"
    target.parent.mkdir()
    monkeypatch.setattr(os, "pwritev", full)
    with (
        pytest.raises(OutputError, match=rf"a\.{container}: the disk is full") as caught,
        publish(target) as temporary,
    ):
        write(temporary, container, random_block(4, 12))
    assert ".mdio-" not in str(caught.value)
    assert list(target.parent.iterdir()) == []


@pytest.mark.parametrize("step", [0.01, 0.1])
def test_nothing_is_said_of_rounding_where_a_step_is_known(step: float) -> None:
    block = random_block(3, 20)
    info = info_of(block)
    for known, asked in ((step, None), (None, step)):
        plan = writer_class("xtc").plan_for(
            info.replace(precision=known), WriteOptions(precision=asked)
        )
        assert (plan.precision, plan.notes) == (step, ())


def test_every_native_format_can_be_that_of_segments() -> None:
    choices = {field.name: field for field in dataclasses.fields(WriteOptions)}["container"]
    assert choices.metadata["choices"] == tuple(NATIVE_FORMATS)


@pytest.mark.parametrize("format_name", ["trr", "dcd", "ncdf"])
def test_frames_of_more_than_2_gib(format_name):
    """Their bytes were negative: sizes of NumPy's structured types are 32-bit integers."""
    n_atoms, fields = 100_000_000, NATIVE_FORMATS[format_name].fields
    encoder = load_class(NATIVE_FORMATS[format_name].encoder)(n_atoms, fields)
    head_nbytes = {"trr": 120, "dcd": 80, "ncdf": 52}[format_name]
    assert encoder.frame_nbytes == 12 * n_atoms * len(fields) + head_nbytes > 2**30
    if format_name == "ncdf":
        header = encoder.header(np.zeros(1), np.zeros(1, np.int64))
        begin = len(header) + 12 * n_atoms * 2 + 52  # of forces, in 64 bits
        assert struct.pack(">IQ", 12 * n_atoms, begin) in header
