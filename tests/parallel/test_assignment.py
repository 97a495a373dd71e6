"""Who reads which unit: each exactly one, where it is, and all about the same number."""

import argparse

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mdio.parallel import assignment
from mdio.parallel.assignment import assign, assign_together, preferred_node, unit_keys


def names_of(n_nodes):
    return [f"node{number}" for number in range(n_nodes)]


def check_case(rng):
    """One random case."""
    n_nodes, n_units = int(rng.integers(1, 12)), int(rng.integers(1, 200))
    held = rng.random((n_nodes, n_units)) < rng.random((n_nodes, 1)) * rng.random()
    held[:, rng.random(n_units) < rng.random()] = False
    names = [f"{name}-{rng.integers(1000)}" for name in names_of(n_nodes)]
    workers = rng.integers(1, 9, n_nodes)
    owners = assign(held, names, workers)
    assert owners.shape == (n_units,)
    assert owners.min() >= 0
    assert owners.max() < n_nodes
    there = held.any(axis=0)
    assert held[owners[there], np.flatnonzero(there)].all()


@given(st.integers(0, 2**32))
@settings(max_examples=300)
def test_each_unit_is_read_once_and_where_it_is(seed):
    check_case(np.random.default_rng(seed))


@given(st.data())
def test_many_sets_of_nodes(drawn):
    rng = np.random.default_rng(drawn.draw(st.integers(0, 999)))
    held = rng.random((14, 3000)) < 0.5
    owners = assign(held, names_of(14))
    there = held.any(axis=0)
    assert held[owners[there], np.flatnonzero(there)].all()
    assert np.bincount(owners, minlength=14).max() < 3000 / 14 * 1.4


def test_missing_and_shared_units_are_dealt_evenly_by_workers():
    for held in (np.zeros((7, 1000), bool), np.ones((7, 1000), bool)):
        counts = np.bincount(assign(held, names_of(7)))
        assert counts.max() - counts.min() <= 1
    counts = np.bincount(assign(np.zeros((3, 1000), bool), names_of(3), [1, 2, 1]))
    assert counts.tolist() == [250, 500, 250]
    held = np.zeros((2, 100), bool)
    held[0, :60] = True
    assert np.bincount(assign(held, names_of(2))).tolist() == [60, 40]


def test_the_share_of_a_lost_node_spreads_over_all_others():
    held = np.zeros((8, 8000), bool)
    before = assign(held, names_of(8))
    held[before, np.arange(8000)] = True
    after = assign(held[1:], names_of(8)[1:]) + 1
    kept = before != 0
    assert (after[kept] == before[kept]).all()
    assert np.bincount(after[~kept], minlength=8)[1:].min() > 1000 / 7 - 2


def test_rendezvous_hashing():
    keys = unit_keys("/a/md.xtc", np.arange(20_000))
    before = preferred_node(keys, names_of(10))
    after = preferred_node(keys, names_of(9))
    assert (after[before != 9] == before[before != 9]).all()
    counts = np.bincount(before, minlength=10)
    assert (abs(counts - 2000) < 300).all()
    shuffled = preferred_node(keys, names_of(10)[::-1])
    assert (9 - shuffled == before).all()
    small = [
        preferred_node(unit_keys(f"/a/{n}.xtc", np.zeros(1, int)), names_of(4))[0]
        for n in range(99)
    ]
    assert len(set(small)) == 4


class Node:
    """A communicator of one rank for each node, of which this is one: it gets what all sent."""

    def __init__(self, rank, cached):
        self.rank, self.size, self.cached, self.n_received = rank, len(cached), cached, 0

    def allgather(self, _):
        return [(f"node{rank}", 1) for rank in range(self.size)]

    def Allgather(self, sent, received):
        part = slice(self.n_received, self.n_received + len(sent))
        self.n_received += len(sent)
        assert (self.cached[self.rank, part] == sent).all()
        received[:] = self.cached[:, part]


def test_many_units_are_assigned_in_parts_each_evenly(monkeypatch):
    monkeypatch.setattr(assignment, "UNITS_AT_ONCE", 800)
    for held in (np.zeros((7, 2003), bool), np.ones((7, 2003), bool)):
        cached = np.packbits(held, axis=1, bitorder="little")
        parts = [assign_together(cached[n], 2003, f"node{n}", 1, Node(n, cached)) for n in range(7)]
        reads = np.unpackbits(np.stack(parts), axis=1, count=2003, bitorder="little")
        assert (reads.sum(axis=0) == 1).all()
        counts = reads.sum(axis=1)
        assert counts.max() - counts.min() <= 3  # of three parts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Random cases, as many as wanted.")
    parser.add_argument("cases", type=int, nargs="?", default=10_000)
    n_cases = parser.parse_args().cases
    for case in range(n_cases):
        check_case(np.random.default_rng(case))
    print(f"{n_cases:,} of {n_cases:,} cases: each unit is read exactly once, where it is")
