"""Writing Zarr trees; plain zarr-python says what is in them."""

import json
import multiprocessing
import pickle
import subprocess
import sys

import google_crc32c
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from suites.zarr_cases import (
    TRICLINIC,
    make_block,
    new_writer,
    write_tree,
)

from mdio.core.errors import OutputError
from mdio.layouts.zarr import tree as zarr_tree
from mdio.layouts.zarr.layout import ZarrLayout
from mdio.testing.blocks import store_piece

SMALL = {"chunk_frames": 4, "piece_chunks": 2}
LOSSLESS = [None, "none", "zstd", "zstd:9", "lz4", "lz4:1", "gzip", "gzip:1"]


def tree_of(path):
    """Return all arrays of a tree as plain zarr-python reads them."""
    group = zarr.open_group(str(path), mode="r")
    return {
        name: np.asarray(node[...]) for name, node in group.members(None) if hasattr(node, "dtype")
    }


def value(group="trajectory", element="position"):
    return f"particles/{group}/{element}/value"


@pytest.mark.parametrize("compression", LOSSLESS)
@pytest.mark.parametrize("chunk_atoms", [None, 5])
def test_zarr_reads_what_was_written(tmp_path, compression, chunk_atoms):
    block = make_block(velocities=True, forces=True, box=TRICLINIC)
    options = {"compression": compression, "chunk_atoms": chunk_atoms, "groups": {"ca": [9, 2, 16]}}
    write_tree(tmp_path / "a.zarr", block, **SMALL, **options)
    tree = tree_of(tmp_path / "a.zarr")
    for field, element in (
        ("positions", "position"),
        ("velocities", "velocity"),
        ("forces", "force"),
    ):
        expected = getattr(block, field)
        assert np.array_equal(tree[value("trajectory", element)], expected)
        assert np.array_equal(tree[value("ca", element)], expected[:, [9, 2, 16]])


def test_the_tree_is_h5md(tmp_path):
    from MDAnalysis.lib.mdamath import triclinic_vectors

    block = make_block(velocities=True, box=TRICLINIC)
    write_tree(tmp_path / "a.zarr", block, groups={"ca": [1]}, **SMALL)
    root = zarr.open_group(str(tmp_path / "a.zarr"), mode="r")
    assert root["h5md"].attrs["version"] == [1, 1]
    assert root["h5md/creator"].attrs["name"] == "mdio"
    assert "name" in root["h5md/author"].attrs
    units = {"position": "Angstrom", "velocity": "Angstrom ps-1"}
    for group in ("trajectory", "ca"):
        particles = root[f"particles/{group}"]
        assert dict(particles["box"].attrs) == {"dimension": 3, "boundary": ["periodic"] * 3}
        for element, unit in {**units, "box/edges": "Angstrom"}.items():
            assert particles[f"{element}/value"].attrs["unit"] == unit
            assert particles[f"{element}/time"].attrs["unit"] == "ps"
            assert particles[f"{element}/step"].dtype == np.int64
            assert np.array_equal(particles[f"{element}/step"][:], block.step)
            assert np.array_equal(particles[f"{element}/time"][:], block.time)
        expected = [triclinic_vectors(box) for box in block.box]
        assert np.array_equal(particles["box/edges/value"][:], expected)
    assert np.array_equal(root["mdio/box"][:], block.box)


def test_without_cells_the_boundary_is_none(tmp_path):
    write_tree(tmp_path / "a.zarr", make_block(box=None))
    root = zarr.open_group(str(tmp_path / "a.zarr"), mode="r")
    assert root["particles/trajectory/box"].attrs["boundary"] == ["none"] * 3
    assert not ZarrLayout(tmp_path / "a.zarr").info.has_box


@pytest.mark.parametrize("steps", [[5, 4, 3, 2], [0, 0, 0, 0], [0, 1, 2, 0]])
@pytest.mark.parametrize("series_frames", [3, 65536])
def test_steps_that_do_not_increase_are_kept_aside(tmp_path, steps, series_frames, monkeypatch):
    monkeypatch.setattr(zarr_tree, "COLUMN_FILE_FRAMES", series_frames)
    block = make_block(4)
    block.step[:] = steps
    write_tree(tmp_path / "a.zarr", block)
    tree = tree_of(tmp_path / "a.zarr")
    assert tree["particles/trajectory/position/step"].tolist() == [0, 1, 2, 3]
    assert tree["mdio/step"].tolist() == steps
    assert ZarrLayout(tmp_path / "a.zarr").read(0, 4).step.tolist() == steps


PLAIN_ZARR = """
import sys, numpy as np, zarr
folder = sys.argv[1]
expected = np.load(folder + "/expected.npy")
for name in sys.argv[2:]:
    root = zarr.open_group(f"{folder}/{name}.zarr", mode="r")
    found = root["particles/trajectory/position/value"][3:21]
    error = np.abs(found.astype("f8") - expected[3:21]).max()
    assert error <= (0.0051 if name.startswith("quantised") else 0), (name, error)
    assert name.startswith("quantised") or "mdio" not in sys.modules
    assert "MDAnalysis" not in sys.modules
"""


def test_zarr_alone_reads_it_in_another_process(tmp_path):
    block = make_block()
    np.save(tmp_path / "expected.npy", block.positions)
    names = []
    for name in ("none", "zstd", "lz4", "gzip"):
        write_tree(tmp_path / f"{name}.zarr", block, compression=name, chunk_atoms=6, **SMALL)
        names.append(name)
    for name in ("bitpack", "rigid", "zstd", "lz4"):
        made = f"quantised_{name}"
        write_tree(tmp_path / f"{made}.zarr", block, compression=name, precision=0.01, **SMALL)
        names.append(made)
    subprocess.run([sys.executable, "-c", PLAIN_ZARR, str(tmp_path), *names], check=True)


def test_zarr_writes_quantised_arrays_that_we_decode(tmp_path):
    from mdio.layouts.codecs.zarr_plugin import QuantisedCodec

    block = make_block(12, 30)
    codec = QuantisedCodec(0.01)
    for one in (codec, QuantisedCodec(0.1, "xtc", "zstd", 5), QuantisedCodec(0.1, "step", "lz4")):
        assert QuantisedCodec.from_dict(one.to_dict()) == one
    assert "level" not in codec.to_dict()["configuration"]
    array = zarr.create_array(
        str(tmp_path / "a.zarr"),
        shape=(12, 30, 3),
        chunks=(6, 30, 3),
        dtype="float32",
        serializer=codec,
        compressors=None,
    )
    array[:] = block.positions
    assert np.abs(zarr.open_array(str(tmp_path / "a.zarr"))[:] - block.positions).max() < 0.0051
    with pytest.raises(ValueError, match="configured as"):
        QuantisedCodec.from_dict({"name": "mdio.quantised", "configuration": {"level": 1}})


@settings(max_examples=15)
@given(st.data())
def test_pieces_may_come_in_any_order(tmp_path_factory, data):
    block = make_block(23)
    folder = tmp_path_factory.mktemp("order")
    order = data.draw(st.permutations(range(6)))
    series_frames = data.draw(st.integers(1, 30))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(zarr_tree, "COLUMN_FILE_FRAMES", series_frames)
        writer = write_tree(folder / "a.zarr", block, order=order, chunk_frames=4, piece_chunks=1)
        assert not any(table._incomplete for table in writer._columns._tables.values())
        tree = tree_of(folder / "a.zarr")
        read = ZarrLayout(folder / "a.zarr").read(0, 23)
    assert np.array_equal(tree[value()], block.positions)
    assert np.array_equal(tree["particles/trajectory/box/edges/time"], block.time)
    for name in ("positions", "box", "time", "step"):
        assert np.array_equal(getattr(read, name), getattr(block, name))


def test_numbers_of_frames_are_written_as_soon_as_a_file_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(zarr_tree, "COLUMN_FILE_FRAMES", 8)
    block = make_block(40)
    writer = new_writer(tmp_path / "a.zarr", block, chunk_frames=4, piece_chunks=1)
    writer.create()
    for piece in writer.plan.write_tasks():
        writer.commit(store_piece(writer, block, piece))
        assert all(len(table._incomplete) <= 1 for table in writer._columns._tables.values())
    writer.finish()


def work(data, block, pieces, connection):
    writer = pickle.loads(data)
    connection.send([store_piece(writer, block, piece) for piece in pieces])


@pytest.mark.parametrize("options", [{}, {"precision": 0.01}, {"compression": "lz4"}])
def test_several_processes_write_one_tree(tmp_path, options):
    block = make_block(40, 50)
    options = {"groups": {"ca": [3, 4]}, "chunk_frames": 4, "piece_chunks": 1, **options}
    writer = new_writer(tmp_path / "a.zarr", block, **options)
    assert writer.facts.parallel_store
    writer.create()
    pieces = writer.plan.write_tasks()
    context = multiprocessing.get_context("fork")
    workers = []
    for rank in range(3):
        ours, theirs = context.Pipe()
        arguments = (pickle.dumps(writer), block, pieces[rank::3], theirs)
        workers.append((context.Process(target=work, args=arguments), ours))
        workers[-1][0].start()
    for process, connection in reversed(workers):
        assert connection.poll(60)
        for record in connection.recv():
            writer.commit(record)
        process.join()
    writer.finish()
    write_tree(tmp_path / "b.zarr", block, **options)
    found, expected = (tree_of(tmp_path / f"{name}.zarr") for name in "ab")
    assert found.keys() == expected.keys()
    for name, array in found.items():
        assert np.array_equal(array, expected[name]), name


def test_a_copy_has_no_file_that_is_being_written(tmp_path):
    block = make_block(8, 5)
    writer = new_writer(tmp_path / "a.zarr", block, **SMALL)
    writer.create()
    for item in writer.encode(0, block):
        writer.store(item)
    pickle.loads(pickle.dumps(writer)).drain()  # in a worker its descriptor would be another file's
    writer.drain()


def test_the_checksums_are_those_of_the_decoded_chunks(tmp_path):
    block = make_block(velocities=True)
    for name, options in {"raw": {}, "zstd": {"compression": "zstd"}}.items():
        path = tmp_path / f"{name}.zarr"
        write_tree(path, block, chunk_atoms=6, groups={"ca": [5, 6, 7]}, **SMALL, **options)
        tree = tree_of(path)
        for group, field, atoms in (
            ("trajectory", "positions", slice(None)),
            ("trajectory", "velocities", slice(None)),
            ("ca", "positions", [5, 6, 7]),
        ):
            array = getattr(block, field)[:, atoms]
            metadata = json.loads((path / value(group)).joinpath("zarr.json").read_text())
            inner = metadata["codecs"][0]["configuration"]["chunk_shape"]
            crcs = tree[f"mdio/crc32c/{group}/{field}"]
            for i, j in np.ndindex(*crcs.shape):
                part = array[i * inner[0] :, j * inner[1] :][: inner[0], : inner[1]]
                chunk = np.zeros(inner, "<f4")
                chunk[: part.shape[0], : part.shape[1]] = part
                assert crcs[i, j] == google_crc32c.value(chunk.tobytes())
        assert all(problem is None for _, problem in ZarrLayout(path).check())


def test_a_missing_piece_is_noticed_and_nothing_looks_finished(tmp_path):
    block = make_block()
    writer = new_writer(tmp_path / "a.zarr", block, **SMALL)
    writer.create()
    for piece in writer.plan.write_tasks()[1:]:
        writer.commit(store_piece(writer, block, piece))
    with pytest.raises(OutputError, match=r"1 of 3 pieces.*frames 0 to 7"):
        writer.finish()
    with pytest.raises(OSError, match="did not finish"):
        _ = ZarrLayout(tmp_path / "a.zarr").info


def test_a_piece_that_comes_twice_does_no_harm(tmp_path):
    block = make_block()
    writer = new_writer(tmp_path / "a.zarr", block, **SMALL)
    writer.create()
    for piece in [*writer.plan.write_tasks(), writer.plan.write_tasks()[0]]:
        writer.commit(store_piece(writer, block, piece))
    writer.finish()
    assert np.array_equal(ZarrLayout(tmp_path / "a.zarr").read(0, 23).time, block.time)


def test_a_full_disk_is_told_with_the_file(tmp_path):
    block = make_block()
    writer = new_writer(tmp_path / "a.zarr", block)
    writer.create()
    shard = tmp_path / "a.zarr" / value() / "c.0.0.0"
    shard.symlink_to("/dev/full")
    with pytest.raises(OutputError, match=r"c\.0\.0\.0.*the disk is full; free some space"):
        store_piece(writer, block, writer.plan.write_tasks()[0])


def test_a_folder_that_cannot_be_made_is_told(tmp_path):
    writer = new_writer(tmp_path / "missing" / "a.zarr", make_block())
    with pytest.raises(OutputError, match=r"a\.zarr.*No such file"):
        writer.create()


def test_files_end_with_their_checksum(tmp_path):
    block = make_block()
    write_tree(tmp_path / "a.zarr", block)
    data = (tmp_path / "a.zarr/particles/trajectory/position/time/c.0").read_bytes()
    assert data[:-4] == block.time.astype("<f8").tobytes()
    assert int.from_bytes(data[-4:], "little") == google_crc32c.value(data[:-4])
    assert zarr_tree.COLUMNS["time"].unit == "ps"
