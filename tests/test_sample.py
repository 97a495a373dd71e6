"""Frames drawn at random: each once an epoch, the same with any number of workers."""

import multiprocessing
import os
import pickle
import sys
import time
import types
import warnings
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from docs.pages import ROOT, blocks_of
from hypothesis import example, given
from hypothesis import strategies as st
from MDAnalysisTests.datafiles import XTC as OTHER_SYSTEM

import mdio
from mdio import sampling
from mdio.core.errors import BlockError, CorruptLayoutError, PlanError, SourceError
from mdio.layouts.base import FormatFacts
from mdio.layouts.views.memory import MemoryLayout
from mdio.testing.blocks import random_block

SMALL = 1 << 19
"""Bytes of a pool that holds a fraction of the frames."""


@pytest.fixture(scope="session")
def many(adk, tmp_path_factory):
    """One simulation, five times: as other programs write it, and as mdio stores it."""
    folder = tmp_path_factory.mktemp("many")
    groups = {"ca": "name CA"}
    chunks = mdio.Storage(chunk_frames=7)
    for name, options in {
        "m.zarr": {"storage": chunks},
        "m.h5md": {"storage": chunks},
        "m.segments": {"storage": mdio.Storage(segments=4)},
    }.items():
        options |= {} if name.endswith("segments") else {"groups": groups, "top": adk["psf"]}
        mdio.convert(adk["xtc"], folder / name, **options)
    return [adk["xtc"], adk["dcd"], *(folder / f"m.{x}" for x in ("h5md", "segments", "zarr"))]


@pytest.fixture(scope="session")
def expected(adk, many):
    """Positions, boxes and times of each, as MDAnalysis reads what it is or was made from."""
    found = []
    for path in many:
        source = path if path.suffix in (".xtc", ".dcd") else adk["xtc"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            frames = mda.Universe(str(adk["psf"]), str(source)).trajectory
            rows = [(ts.positions.copy(), np.copy(ts.dimensions), ts.time) for ts in frames]
        found.append(rows)
    return found


def drawn(batches):
    """Return (trajectory, frame) of all rows in their order."""
    pairs = [np.stack([one.trajectory, one.frame], axis=1) for one in batches]
    return [tuple(pair) for pair in np.concatenate(pairs).tolist()]


def every_frame(sizes):
    return [(number, frame) for number, n in enumerate(sizes) for frame in range(n)]


@pytest.mark.parametrize("batch, pool_nbytes", [(32, 1 << 28), (7, SMALL), (1, SMALL), (600, 1)])
def test_every_frame_once_an_epoch_as_mdanalysis_reads_it(many, expected, batch, pool_nbytes):
    atoms = np.arange(0, 3341, 17)
    sample = mdio.sample(many, batch=batch, atoms=atoms, seed=3, pool_nbytes=pool_nbytes)
    batches = list(sample)
    assert [one.n_frames for one in batches[:-1]] == [batch] * (len(sample) - 1)
    rows = drawn(batches)
    assert len(rows) == sample.n_frames == 5 * 98
    assert sorted(rows) == every_frame([98] * 5)
    assert rows != sorted(rows)
    for one in batches:
        for row, (number, frame) in enumerate(zip(one.trajectory, one.frame, strict=True)):
            positions, box, time_ps = expected[number][frame]
            assert np.array_equal(one.positions[row], positions[atoms])
            assert np.allclose(one.box[row], box if box.shape else 0)
            assert one.time[row] == pytest.approx(time_ps)


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_sequence_is_that_of_the_seed_with_any_number_of_workers(many, shuffle):
    def sequence(**options):
        words = {"batch": 9, "atoms": "ca", "seed": 1, "pool_nbytes": SMALL, "shuffle": shuffle}
        stored = [path for path in many if path.suffix in (".zarr", ".h5md")]
        return drawn(mdio.sample(stored, **words | options))

    first = sequence()
    assert all(sequence(workers=n) == first for n in (1, 2, 3))
    assert (sequence(seed=2) == first) is not shuffle


def test_epochs_have_orders_of_their_own_which_come_again(many):
    def epochs(n):
        return [drawn(sample) for _ in range(n)]

    sample = mdio.sample(many[:2], atoms=[0], seed=5)
    first, second, third = epochs(3)
    assert sorted(first) == sorted(second) == sorted(third)
    assert first != second != third != first
    assert sample.epoch == 3
    sample.epoch = 1
    assert epochs(2) == [second, third]
    assert drawn(pickle.loads(pickle.dumps(sample)).batches(0)) == first


def test_without_shuffling_frames_come_in_their_order(many):
    rows = drawn(mdio.sample(many, batch=10, atoms=[1, 0], shuffle=False, workers=2))
    assert rows == every_frame([98] * 5)


def test_shards_have_each_frame_once(many):
    sample = mdio.sample(many, atoms=[0], pool_nbytes=SMALL // 16)
    shards = [drawn(sample.batches(4, (which, 3))) for which in range(3)]
    assert sorted(row for rows in shards for row in rows) == every_frame([98] * 5)
    assert all(shards)


class Chunked(MemoryLayout):
    """Frames in memory that are read by chunk."""

    facts = FormatFacts(options=frozenset({"block", "atoms", "chunk_frames"}))

    def __init__(self, path, *, chunk_frames, **options):
        super().__init__(path, chunk_frames=chunk_frames, **options)

    def _open(self):
        return super()._open().replace(chunk_frames=self.options["chunk_frames"])


@given(
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 12)), min_size=1, max_size=4),
    batch=st.integers(1, 30),
    pool_nbytes=st.integers(1, 4000),
    seed=st.integers(0, 3),
    shuffle=st.booleans(),
    n_shards=st.integers(1, 3),
)
@example(sizes=[(1, 1)], batch=1, pool_nbytes=1, seed=0, shuffle=True, n_shards=1)
@example(sizes=[(40, 12), (5, 12)], batch=30, pool_nbytes=1, seed=1, shuffle=True, n_shards=2)
def test_any_trajectories(sizes, batch, pool_nbytes, seed, shuffle, n_shards):
    blocks = [random_block(n_frames, 2) for n_frames, _ in sizes]
    layouts = [
        Chunked(f"{number}", block=block, chunk_frames=chunk_frames)
        for number, (block, (_, chunk_frames)) in enumerate(zip(blocks, sizes, strict=True))
    ]
    options = {"shuffle": shuffle, "seed": seed, "pool_nbytes": pool_nbytes}
    sample = mdio.sample(layouts, batch=batch, **options)
    rows = []
    for which in range(n_shards):
        batches = list(sample.batches(seed, (which, n_shards)))
        assert all(one.n_frames == batch for one in batches[:-1])
        rows += drawn(batches) if batches else []
        for one in batches:
            for row, (number, frame) in enumerate(zip(one.trajectory, one.frame, strict=True)):
                for name in ("positions", "box", "time", "step"):
                    assert np.array_equal(
                        getattr(one, name)[row], getattr(blocks[number], name)[frame]
                    )
    assert sorted(rows) == every_frame([n_frames for n_frames, _ in sizes])


def test_frames_of_a_batch_are_of_many_trajectories():
    """The first batch of a pool that has room for a third of a hundred trajectories."""
    layouts = [Chunked(f"{n}", block=random_block(10, 4), chunk_frames=10) for n in range(100)]
    first = next(iter(mdio.sample(layouts, batch=64, pool_nbytes=48 * 333)))
    assert len(set(first.trajectory.tolist())) > 20


def test_an_epoch_reads_each_byte_about_once(adk, tmp_path):
    """As the system counts them; the chunks of a frame at random would be read many times over."""
    outputs = [tmp_path / f"{n}.{suffix}" for n in range(2) for suffix in ("zarr", "h5md")]
    for path in outputs:
        mdio.convert(adk["xtc"], path, storage=mdio.Storage(chunk_frames=10))
    files = [file for path in outputs for file in (path.rglob("*") if path.is_dir() else [path])]
    stored = sum(file.stat().st_size for file in files if file.is_file())
    sample = mdio.sample(outputs, batch=13, pool_nbytes=1 << 22)
    assert len(drawn(sample)) == 4 * 98

    def n_read():
        text = Path("/proc/self/io").read_text()
        return int(text.split("rchar: ")[1].split()[0])

    before = n_read()
    for _ in sample:
        pass
    assert n_read() - before < 1.1 * stored


def test_groups_selections_and_atom_groups_are_the_same_atoms(adk, many):
    universe = mda.Universe(str(adk["psf"]))
    indices = universe.select_atoms("name CA").indices
    stored = [path for path in many if path.suffix in (".zarr", ".h5md")]
    asked = [
        mdio.sample(many, atoms=indices),
        mdio.sample(many, atoms=np.isin(np.arange(3341), indices)),
        mdio.sample(many, atoms=universe.select_atoms("name CA")),
        mdio.sample(many, atoms="name CA", top=adk["psf"]),
        mdio.sample(stored, atoms="ca"),
        mdio.sample(stored, atoms="name CA"),
    ]
    for sample in asked:
        block = next(iter(sample))
        assert (sample.n_atoms, block.n_atoms) == (214, 214)
        for row, number, frame in zip(range(3), block.trajectory, block.frame, strict=False):
            with mdio.open(sample.paths[number]) as layout:
                right = layout.read(frame, frame + 1, indices).positions[0]
            assert np.array_equal(block.positions[row], right)


def test_ensembles_joined_files_and_open_layouts(adk, tmp_path):
    mdio.convert_ensemble({"a": adk["xtc"], "b": adk["xtc"]}, tmp_path / "both.zarr", step=5)
    with mdio.open(adk["dcd"]) as layout:
        given = [tmp_path / "both.zarr", [adk["xtc"], adk["dcd"]], layout]
        sample = mdio.sample(given, atoms=[0], overlap="keep-all")
        assert sorted(drawn(sample)) == every_frame([20, 20, 196, 98])
    assert mdio.sample(adk["dcd"], atoms=[0]).n_frames == 98


def test_velocities_and_forces(adk, tmp_path):
    mdio.convert(adk["trr"], tmp_path / "t.zarr")
    for block in mdio.sample([adk["xtc"]], atoms=[0]):
        assert block.velocities is None
    with pytest.raises(PlanError, match=r"adk\.xtc: it has no velocities; leave them out"):
        mdio.sample([adk["xtc"]], fields=["velocities"])
    block = random_block(20, 3, velocities=True, forces=True)
    layout = MemoryLayout("memory", block=block)
    for batch in mdio.sample([layout], batch=6, fields=iter(["velocities"])):
        assert batch.forces is None
        assert np.array_equal(batch.velocities, block.velocities[batch.frame])
        assert np.array_equal(batch.positions, block.positions[batch.frame])


def test_what_does_not_fit_is_told_by_file(adk, many, tmp_path):
    with pytest.raises(PlanError, match=r"adk_oplsaa\.xtc: 47681 atoms .* 3341 of .*adk\.xtc"):
        mdio.sample([adk["xtc"], OTHER_SYSTEM])
    with pytest.raises(SourceError, match=r"adk_oplsaa\.xtc has 47681 atoms, but the topology"):
        mdio.sample([adk["xtc"], OTHER_SYSTEM], atoms="name CA", top=adk["psf"])
    assert mdio.sample([adk["xtc"], OTHER_SYSTEM], atoms=range(100)).n_atoms == 100
    with pytest.raises(PlanError, match=r"adk\.xtc: the selection 'name CA' needs a topology"):
        mdio.sample(adk["xtc"], atoms="name CA")
    with pytest.raises(PlanError, match="'name NOT' selects no atoms"):
        mdio.sample(adk["xtc"], atoms="name NOT", top=adk["psf"])
    with pytest.raises(IndexError, match=r"adk\.xtc: atom indices .* from 0 to 3340"):
        mdio.sample(adk["xtc"], atoms=[3341])
    for atoms in ([], [0.5], [True]):
        with pytest.raises(PlanError, match=r"adk\.xtc: atoms: "):
            mdio.sample(adk["xtc"], atoms=atoms)
    with pytest.raises(SourceError, match=r"none\.xtc"):
        mdio.sample([adk["xtc"], tmp_path / "none.xtc"])
    with pytest.raises(PlanError, match="no trajectory is given"):
        mdio.sample([])
    for wrong in ({"batch": 0}, {"seed": -1}, {"pool_nbytes": 0}, {"workers": 0}, {"workers": 1.5}):
        with pytest.raises(PlanError, match="give"):
            mdio.sample(adk["xtc"], **wrong)
    for fields in (["charges"], 3):
        with pytest.raises(PlanError, match="no field"):
            mdio.sample(adk["xtc"], fields=fields)
    sample = mdio.sample(adk["xtc"])
    for epoch, shard in ((-1, (0, 1)), (0, (2, 2)), (0, (-1, 2))):
        with pytest.raises(PlanError, match="both begin with 0"):
            sample.batches(epoch, shard)


def test_names_are_compared_with_the_topology_inside_each_trajectory(adk, tmp_path):
    atoms = mda.Universe(str(adk["psf"])).atoms
    renamed = mda.Merge(atoms)
    renamed.atoms.names = ["X", *renamed.atoms.names[1:]]
    tops = {"right": adk["psf"], "renamed": renamed, "turned": mda.Merge(atoms[::-1])}
    for name, top in tops.items():
        mdio.convert(adk["xtc"], tmp_path / f"{name}.zarr", top=top, step=5)
    right, other, turned = (tmp_path / f"{name}.zarr" for name in tops)
    sample = mdio.sample([adk["xtc"], right, other], atoms="name CA", top=adk["psf"])
    assert len(sample.notes) == 1
    assert "names 1 of 3,341 atoms otherwise" in sample.notes[0]
    with pytest.raises(PlanError, match=r"turned\.zarr in another order"):
        mdio.sample([adk["xtc"], turned], atoms="name CA", top=adk["psf"])


@pytest.mark.parametrize("workers", [None, 2])
def test_damage_ends_the_epoch_and_names_the_file(adk, tmp_path, workers):
    mdio.convert(adk["xtc"], tmp_path / "d.zarr", storage=mdio.Storage(chunk_frames=7))
    shard = max((tmp_path / "d.zarr").rglob("c.*.0.0"), key=lambda file: file.stat().st_size)
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    sample = mdio.sample([adk["dcd"], tmp_path / "d.zarr"], workers=workers)
    with pytest.raises(CorruptLayoutError, match=r"d\.zarr.*checksum"):
        list(sample)
    assert multiprocessing.active_children() == []


def open_files():
    named = (os.path.realpath(one) for one in Path("/proc/self/fd").iterdir())
    return {name for name in named if not name.startswith("/proc")}


@pytest.mark.parametrize("workers", [None, 2])
def test_who_leaves_early_leaves_nothing_open(many, workers):
    before = open_files()
    sample = mdio.sample(many, batch=3, pool_nbytes=SMALL, workers=workers)
    assert open_files() <= before
    for _ in sample:
        break
    assert open_files() <= before
    assert multiprocessing.active_children() == []
    batches = iter(sample)
    next(batches)
    assert len(multiprocessing.active_children()) == (workers or 0)
    batches.close()
    assert open_files() <= before
    assert multiprocessing.active_children() == []
    assert len(drawn(sample)) == 5 * 98


def slow_first(log):
    """Return what stands for `_Reader.__call__`: the first frames are slow; `log` has all."""

    def call(reader, run):
        if run is None:
            time.sleep(0.001)
            return None
        if run.start == 0:  # once others have read, it leaves them time to read too much
            while not log.exists() or len(log.read_text().split()) < 2:
                time.sleep(0.01)
            time.sleep(0.5)
        with log.open("a") as file:
            file.write(f"{run.start}\n")
        return reader._layouts[0].read(run.start, run.stop, None)

    return call


def test_memory_is_bounded_where_a_worker_is_slow(tmp_path, monkeypatch):
    monkeypatch.setattr(sampling._Reader, "__call__", slow_first(tmp_path / "log"))
    layout = Chunked("memory", block=random_block(200, 3), chunk_frames=1)
    options = {"shuffle": False, "pool_nbytes": 1, "workers": 3}
    assert drawn(mdio.sample([layout], batch=1, **options)) == every_frame([200])
    reads = (tmp_path / "log").read_text().split()
    assert 2 <= reads.index("0") <= 10  # frames that others have read meanwhile


def test_a_worker_that_dies(many, monkeypatch):
    def dies(reader, run):
        os.kill(os.getpid(), 9)

    monkeypatch.setattr(sampling._Reader, "__call__", dies)
    with pytest.raises(BlockError, match="killed"):
        list(mdio.sample(many, atoms=[0], workers=2))
    assert multiprocessing.active_children() == []


class Torch(types.ModuleType):
    """What of PyTorch the page uses, by PyTorch's protocol: workers are forked each epoch.

    PyTorch itself is too large to be installed for this.
    """

    class IterableDataset:
        pass

    class DataLoader:
        def __init__(self, dataset, batch_size, num_workers):
            assert batch_size is None  # what the dataset yields is a batch
            self.dataset, self.num_workers = dataset, num_workers

        def __iter__(self):
            context = multiprocessing.get_context("fork")
            queue = context.Queue()
            words = [(self.dataset, n, self.num_workers, queue) for n in range(self.num_workers)]
            workers = [context.Process(target=_serve, args=one, daemon=True) for one in words]
            for worker in workers:
                worker.start()
            left = len(workers)
            while left:
                found = queue.get(timeout=60)
                left -= found is None
                if found is not None:
                    yield found
            for worker in workers:
                worker.join()

    def __init__(self):
        super().__init__("torch")
        self.from_numpy = np.asarray
        self.info = None
        self.utils = types.ModuleType("torch.utils")
        self.utils.data = types.ModuleType("torch.utils.data")
        self.utils.data.IterableDataset = self.IterableDataset
        self.utils.data.DataLoader = self.DataLoader
        self.utils.data.get_worker_info = lambda: self.info


def _serve(dataset, number, n_workers, queue):
    sys.modules["torch"].info = types.SimpleNamespace(id=number, num_workers=n_workers)
    for one in dataset:
        queue.put(one)
    queue.put(None)


def test_the_dataset_of_the_page(adk, tmp_path, monkeypatch):
    torch = Torch()
    for name in ("torch", "torch.utils", "torch.utils.data"):
        module = torch if name == "torch" else getattr(torch.utils, "data", torch.utils)
        monkeypatch.setitem(sys.modules, name, module)
    page = blocks_of(ROOT / "docs/howto.md")
    (text,) = [block.text for block in page if "IterableDataset" in block.text]
    monkeypatch.chdir(tmp_path)
    Path("md.psf").write_bytes(adk["psf"].read_bytes())
    for name in ("a.xtc", "b.xtc"):
        Path(name).write_bytes(adk["xtc"].read_bytes())
    names = {"mdio": mdio, "seen": []}
    exec(
        compile(text.replace("...", "seen.append((positions, trajectory))"), "page", "exec"), names
    )
    n_epochs = 10
    frames = [len(positions) for positions, _ in names["seen"]]
    assert sum(frames) == n_epochs * 2 * 98
    values = np.concatenate([positions for positions, _ in names["seen"]])
    assert values.shape[1:] == (214, 3)
    epochs = values.reshape(n_epochs, 2 * 98, -1)
    in_order = [np.sort(one[:, 0]) for one in epochs]
    assert all(np.array_equal(one, in_order[0]) for one in in_order)
    assert not np.array_equal(epochs[0], epochs[1])


def test_an_atom_group_is_of_this_system(many):
    group = mda.Universe.empty(5).atoms
    with pytest.raises(PlanError, match="the mask or Universe has 5 atoms"):
        next(iter(mdio.sample(many[-1], atoms=group)))
