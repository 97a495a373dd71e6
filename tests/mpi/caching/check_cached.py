"""Ranks of two nodes analyse what each has (run by test_analysis_cached.py, on some ranks)."""

import os
import shutil
import sys
from collections import Counter
from pathlib import Path
from unittest.mock import patch

import numpy as np
from mapreduce import programs
from mpi4py import MPI
from parallel.all_checks import run_all

import mdio
from mdio.layouts import caching
from mdio.parallel import assignment
from mdio.parallel.sleeping import allgather

COMM = MPI.COMM_WORLD
RANK, SIZE = COMM.rank, COMM.size
TOP, FOLDER = sys.argv[1], Path(sys.argv[2])
CACHE = FOLDER / "c"
NODES = ["a", "b"][: min(SIZE, 2)]
os.environ["MDIO_NODE"] = NODES[RANK % len(NODES)]


def analysed(executor, path, **arguments):
    """Return the result, which is that of one process, and its bytes from source and cache."""
    kernel = mdio.RMSD("name CA")
    found = mdio.analyze(path, top=TOP, kernel=kernel, executor=executor, cache=CACHE, **arguments)
    if RANK == 0:
        expected = mdio.analyze(path, top=TOP, kernel=kernel, **arguments)
        for name in ("frame", "time", "values"):
            assert np.array_equal(getattr(found, name), getattr(expected, name)), (path, name)
    numbers = found.to_json()
    return found, numbers["nbytes_source"], numbers["nbytes_cache"]


def map_reduced(executor, path):
    """Of all frames, of a list of them, of replicas: read where they are, each once."""
    program = programs.Windows("few")
    arguments = {"top": TOP, "map": program.map, "executor": executor, "cache": CACHE}
    for given, frames in ((path, None), (path, [1, 2, 5, 60, 61, 70]), ({"x": path}, slice(9, 80))):
        found = mdio.map_reduce(given, **arguments, frames=frames)
        numbers = found.to_json()
        assert numbers["nbytes_cache"] > 0 and numbers["nbytes_source"] == 0, (frames, numbers)
        if RANK == 0:
            expected = mdio.map_reduce(given, top=TOP, map=program.map, frames=frames)
            assert np.array_equal(found.keys, expected.keys)
            assert np.array_equal(found.n_pairs, expected.n_pairs)
            for name, column in expected.columns.items():
                assert np.array_equal(found.columns[name], column), name


def units_by_node():
    """Return the names of units that each node has."""
    found = {}
    for node in NODES:
        paths = (CACHE / f"node-{node}").rglob("*.unit")
        found[node] = {f"{path.parent.name}/{path.name}" for path in paths if "-t" not in path.stem}
    return found


def remove_cache():
    allgather(COMM, None)
    if RANK == 0:
        shutil.rmtree(CACHE)
    allgather(COMM, None)


def passes(executor, path):
    """First pass, second pass, every third frame, a lost node, and all nodes again."""
    _, from_source, _ = analysed(executor, path)
    assert from_source > 0
    has = units_by_node()
    assert len(set().union(*has.values())) == sum(map(len, has.values())), "some were read twice"
    assert all(has.values())
    for arguments in ({}, {"start": 3, "step": 3}):
        found, from_source, from_cache = analysed(executor, path, **arguments)
        assert from_source == 0, path
        assert from_cache > 0
        assert found.notes == ()
    map_reduced(executor, path)
    assert units_by_node() == has, "some were read by another node"
    if len(NODES) > 1:
        allgather(COMM, None)
        if RANK == 0:
            shutil.rmtree(CACHE / "node-b")
        allgather(COMM, None)
        _, from_source, from_cache = analysed(executor, path)
        assert from_source > 0
        assert from_cache > 0
        assert units_by_node()["a"] == has["a"]
        assert analysed(executor, path)[1] == 0
    remove_cache()


def check_very_many_units():
    """As if a million were few: each unit is read once, by a node that has it, if one does."""
    usual, assignment.UNITS_AT_ONCE = assignment.UNITS_AT_ONCE, 40
    try:
        for n_units in (11, 64, 5003):
            held = np.random.default_rng(RANK).random(n_units) < 0.4
            bits = np.packbits(held, bitorder="little")
            mine = assignment.assign_together(bits.copy(), n_units, f"n{RANK}", 1, COMM)
            assert mine.shape == bits.shape
            every = np.unpackbits(np.stack(allgather(COMM, mine)), axis=1, bitorder="little")
            assert (every.sum(axis=0) == (np.arange(every.shape[1]) < n_units)).all()
            there = np.array(allgather(COMM, held))
            reads = every[:, :n_units].astype(bool)
            assert ((reads & there).any(axis=0) == there.any(axis=0)).all()
    finally:
        assignment.UNITS_AT_ONCE = usual


def frames_of_ranks(found):
    """Return how many frames each rank had."""
    counts = Counter(dict.fromkeys(range(SIZE), 0))
    for timing in found.timings:
        counts[timing.rank] += timing.n_frames
    return counts.values()


@patch.dict(os.environ, MDIO_NODE="one")
@patch.multiple(caching, MIN_UNIT_NBYTES=1, GROWTH_DIVISOR=16)
def check_ranks_of_a_node_share_its_frames():
    """Units grow along a trajectory, from 1 frame to 6; in three blocks for each rank, too."""
    with mdio.MPIExecutor(COMM) as executor:
        for n_blocks in (1, 1, 3):
            found, *_ = analysed(executor, FOLDER / "adk.xtc", blocks_per_worker=n_blocks)
            n_frames = frames_of_ranks(found)
            assert max(n_frames) - min(n_frames) <= 12, (n_blocks, n_frames)
            assert len(found.timings) == n_blocks * SIZE
    remove_cache()


@patch.dict(os.environ, MDIO_NODE="one")
@patch.object(caching, "MIN_UNIT_NBYTES", caching.MAX_UNIT_NBYTES)
def check_ranks_of_a_node_share_trajectories_of_one_unit():
    program = programs.Windows("few")
    paths = [FOLDER / f"adk.{kind}" for kind in ("dcd", "xtc")]
    paths = {str(number): paths[number % 2] for number in range(2 * SIZE)}
    with mdio.MPIExecutor(COMM) as executor:
        found = mdio.map_reduce(paths, top=TOP, map=program.map, executor=executor, cache=CACHE)
    n_frames = frames_of_ranks(found)
    assert min(n_frames) == max(n_frames), n_frames
    remove_cache()


def check_passes():
    with mdio.MPIExecutor(COMM) as executor:
        for name in ("adk.dcd", "adk.zarr"):
            passes(executor, FOLDER / name)


if __name__ == "__main__":
    run_all(globals(), COMM)
