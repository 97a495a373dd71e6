"""H5MD files as we write them: opened by h5py and by MDAnalysis' own reader."""

import json
import multiprocessing
import os
import pickle
import resource
import warnings

import h5py
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from suites.h5md_cases import make_block, new_writer, write_h5md

from mdio.core.errors import OutputError, PlanError
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.h5md.writer import H5MDWriter
from mdio.layouts.plan import WriteOptions
from mdio.testing.blocks import store_piece

GROUPS = {"ca": [3, 1, 7], "AAA": [0], "0": [16, 2]}
SPLIT = {"chunk_frames": 4, "chunk_atoms": 6}


def stock_reader(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from MDAnalysis.coordinates.H5MD import H5MDReader

        return H5MDReader(str(path))


@pytest.mark.parametrize("box", ["orthogonal", "triclinic", "none", "some"])
@pytest.mark.parametrize("options", [{}, SPLIT, {"compression": "gzip:1", **SPLIT}])
def test_mdanalysis_reads_the_full_system(tmp_path, box, options):
    block = make_block(box=box, velocities=True, forces=True)
    write_h5md(tmp_path / "x.h5md", block, groups=GROUPS, **options)
    with stock_reader(tmp_path / "x.h5md") as reader:
        assert (reader.n_frames, reader.n_atoms) == (block.n_frames, block.n_atoms)
        for frame, ts in enumerate(reader):
            assert_array_equal(ts.positions, block.positions[frame])
            assert_array_equal(ts.velocities, block.velocities[frame])
            assert_array_equal(ts.forces, block.forces[frame])
            assert (ts.time, ts.data["step"]) == (block.time[frame], block.step[frame])
            if block.box[frame].any():
                exact = {"orthogonal": 0}.get(box, 2e-7)  # cells go through their edges
                assert_allclose(ts.dimensions, block.box[frame], rtol=exact)
            else:
                assert ts.dimensions is None
        assert reader.parse_n_atoms(str(tmp_path / "x.h5md")) == block.n_atoms


def test_the_full_system_is_first_among_many_groups(tmp_path):
    names = [chr(code) for code in range(ord("a"), ord("a") + 20)]
    write_h5md(tmp_path / "x.h5md", make_block(), groups={name: [0, 1] for name in names})
    with h5py.File(tmp_path / "x.h5md") as file:
        assert list(file["particles"]) == ["trajectory", *names]


def test_it_is_h5md(tmp_path):
    block = make_block(velocities=True, forces=True)
    write_h5md(tmp_path / "x.h5md", block, groups=GROUPS, **SPLIT)
    with h5py.File(tmp_path / "x.h5md") as file:
        assert file["h5md"].attrs["version"].tolist() == [1, 1]
        assert file["h5md"].attrs["version"].dtype == np.int32
        assert file["h5md/creator"].attrs["name"] == b"mdio"
        assert "name" in file["h5md/author"].attrs
        full = file["particles/trajectory"]
        for name, unit in (
            ("position", "Angstrom"),
            ("velocity", "Angstrom ps-1"),
            ("force", "kJ mol-1 Angstrom-1"),
        ):
            assert full[f"{name}/value"].dtype == np.dtype("<f4")
            assert full[f"{name}/value"].chunks == (4, 6, 3)
            assert full[f"{name}/value"].attrs["unit"] == unit
        assert full["position/time"].attrs["unit"] == "ps"
        assert full["box"].attrs["dimension"] == 3
        assert list(full["box"].attrs["boundary"]) == ["periodic"] * 3
        assert full["box/edges/value"].shape == (block.n_frames, 3, 3)
        for name, atoms in GROUPS.items():
            group = file[f"particles/{name}"]
            assert_array_equal(group["position/value"], block.positions[:, atoms])
            assert_array_equal(group["velocity/value"], block.velocities[:, atoms])
            assert_array_equal(group["force/value"], block.forces[:, atoms])
            assert_array_equal(group["id"], atoms)
            assert group["box"] == full["box"]
            for element in ("position", "velocity", "force"):
                assert group[f"{element}/step"] == full["position/step"]
                assert group[f"{element}/time"] == full["position/time"]
        assert full["box/edges/step"] == full["position/step"]
        assert_array_equal(full["position/time"], block.time)
        assert_array_equal(file["mdio/box"], block.box)
        assert "mdio/step" not in file
        manifest = json.loads(file["mdio/manifest"].asstr()[()])
        assert manifest["groups"] == {"ca": 3, "AAA": 1, "0": 2}
        assert manifest["has_box"] is True


def test_old_hdf5_reads_the_structures(tmp_path):
    write_h5md(tmp_path / "x.h5md", make_block(), groups=GROUPS)
    data = (tmp_path / "x.h5md").read_bytes()
    assert data[8] == 0  # version of the superblock: that of HDF5 1.0 to 1.8


def test_no_cell_at_all_means_no_edges(tmp_path):
    write_h5md(tmp_path / "x.h5md", make_block(box="none"))
    with h5py.File(tmp_path / "x.h5md") as file:
        box = file["particles/trajectory/box"]
        assert list(box) == []
        assert list(box.attrs["boundary"]) == ["none"] * 3


@pytest.mark.parametrize("steps", [[0, 0, 0], [3, 2, 1], [-5, 1, 2]])
def test_steps_that_do_not_increase_are_kept_aside(tmp_path, steps):
    block = make_block(3, 2)
    block.step[:] = steps
    write_h5md(tmp_path / "x.h5md", block)
    with h5py.File(tmp_path / "x.h5md") as file:
        assert file["particles/trajectory/position/step"][:].tolist() == [0, 1, 2]
        assert file["mdio/step"][:].tolist() == steps
        assert_array_equal(file["particles/trajectory/position/time"], block.time)


def test_kept_atoms_have_their_numbers_in_the_source(tmp_path):
    block = make_block(4, 3)
    path = tmp_path / "x.h5md"
    write_h5md(path, block, atoms=np.array([5, 8, 9]), groups={"ca": [2, 0]})
    with h5py.File(path) as file:
        assert file["particles/trajectory/id"][:].tolist() == [5, 8, 9]
        assert file["particles/ca/id"][:].tolist() == [9, 5]


def test_chunks_lie_on_stripes(tmp_path):
    block = make_block(300, 1500)
    groups = {"small": list(range(10)), "large": list(range(700))}
    plan = write_h5md(tmp_path / "x.h5md", block, groups=groups)
    assert plan.stripes.alignment_nbytes == 1 << 20
    status = (tmp_path / "x.h5md").stat()
    with h5py.File(tmp_path / "x.h5md") as file:
        for name, atoms in (("trajectory", slice(None)), *groups.items()):
            value = file[f"particles/{name}/position/value"]
            assert_array_equal(value[:], block.positions[:, atoms])
            infos = [value.id.get_chunk_info(k) for k in range(value.id.get_num_chunks())]
            offsets = np.array([info.byte_offset for info in infos])
            assert (offsets + infos[0].size).max() <= status.st_size
            if name == "trajectory":
                assert len(offsets) > 3
                assert not (offsets % plan.stripes.alignment_nbytes).any()
            elif name == "small":  # would be mostly padding
                assert np.diff(offsets).max(initial=0) < plan.stripes.alignment_nbytes
    assert plan.nbytes <= status.st_size <= plan.nbytes + 3 * plan.stripes.alignment_nbytes


def test_sizes_are_as_planned(tmp_path):
    for options in ({}, {"chunk_frames": 5, "chunk_atoms": 7}):
        plan = write_h5md(tmp_path / f"{len(options)}.h5md", make_block(120, 400), **options)
        size = (tmp_path / f"{len(options)}.h5md").stat().st_size
        assert plan.nbytes < size < plan.nbytes + 60_000


def _work(writer, block, pieces, queue):
    for start, stop in pieces:
        queue.put(store_piece(writer, block, (start, stop)))


def test_processes_write_at_once(tmp_path):
    block = make_block(300, 2000, velocities=True)
    writer = new_writer(
        tmp_path / "x.h5md", block, groups={"ca": [1, 2]}, chunk_frames=3, chunk_atoms=1100
    )
    assert writer.facts.parallel_store
    writer.create()
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    copy = pickle.loads(pickle.dumps(writer))
    pieces = writer.plan.write_tasks()
    assert len(pieces) > 3
    children = [
        context.Process(target=_work, args=(copy, block, pieces[k::3], queue)) for k in range(3)
    ]
    for child in children:
        child.start()
    for _ in pieces:
        writer.commit(queue.get(timeout=60))
    for child in children:
        child.join()
    writer.finish()
    with h5py.File(tmp_path / "x.h5md") as file:
        assert_array_equal(file["particles/trajectory/position/value"], block.positions)
        assert_array_equal(file["particles/trajectory/velocity/value"], block.velocities)
        assert_array_equal(file["particles/ca/position/value"], block.positions[:, [1, 2]])
        assert_array_equal(file["particles/trajectory/position/time"], block.time)


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_a_missing_chunk_is_noticed(tmp_path, compression):
    block = make_block(12, 9)
    writer = new_writer(
        tmp_path / "x.h5md", block, compression=compression, chunk_frames=4, chunk_atoms=5
    )
    writer.plan = writer.plan.replace(piece_frames=4)
    writer.create()
    for start, stop in writer.plan.write_tasks():
        record = store_piece(writer, block, (start, stop))
        if start == 4:
            crcs = {k: v for k, v in record.crcs.items() if k != "trajectory/positions/1/1"}
            record = type(record)(start, stop, crcs, 0, record.box, record.time, record.step)
        writer.commit(record)
    with pytest.raises(OutputError, match=r"1 of 6 chunks .* frames 4 to 7, atoms from 5"):
        writer.finish()
    writer.abort()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compression": "zstd:3"}, "gzip"),
        ({"compression": "gzip:11"}, "gzip:0 to gzip:9"),
        ({"compression": "gzip:-1"}, "gzip"),
        ({"precision": 0.0}, "positive"),
        ({"precision": -0.01}, "positive"),
        ({"precision": float("nan")}, "positive"),
        ({"groups": {"a/b": 3}}, "slash"),
        ({"groups": {"trajectory": 3}}, "full system"),
        ({"groups": {"": 3}}, "name"),
    ],
)
def test_what_h5md_cannot_hold(options, says):
    info = TrajectoryInfo("x", "x", 10, 5, 1.0, 0.0, 9.0)
    with pytest.raises(PlanError, match=says):
        H5MDWriter.plan_for(info, WriteOptions(**options))


def test_an_empty_file_is_filled_and_another_is_left(tmp_path):
    striped = tmp_path / "striped.h5md"
    striped.touch()  # as lfs setstripe leaves it
    write_h5md(striped, make_block())
    size = striped.stat().st_size
    with pytest.raises(OutputError, match="striped"):
        write_h5md(striped, make_block())
    assert striped.stat().st_size == size


@pytest.mark.parametrize("compression", [None, "gzip:1"])
@pytest.mark.parametrize("limit", [0, 100_000])
def test_a_full_disk_names_the_file(tmp_path, compression, limit):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        with pytest.raises(OutputError, match=r"x\.h5md.*limit"):
            write_h5md(tmp_path / "x.h5md", make_block(200, 200), compression=compression)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_up_while_chunks_are_written(tmp_path, monkeypatch):
    block = make_block()
    writer = new_writer(tmp_path / "x.h5md", block)
    writer.create()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(OutputError, match=r"x\.h5md.*disk is full"):
        store_piece(writer, block, (0, block.n_frames))
    writer.abort()
