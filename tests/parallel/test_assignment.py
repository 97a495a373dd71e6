"""Who reads which unit: each exactly one, where it is, and all about the same number."""

import argparse

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mdio.parallel.assignment import (
    MAX_BLOCKS,
    assign,
    assign_words,
    preferred_node,
    unit_keys,
    words_in_block,
)


def names_of(n_nodes):
    return [f"node{number}" for number in range(n_nodes)]


def unpacked(words, n_units):
    return np.unpackbits(words.view(np.uint8), axis=1, bitorder="little", count=n_units).astype(
        bool
    )


def check_case(rng):
    """One random case of both ways to assign."""
    n_nodes, n_units = int(rng.integers(1, 12)), int(rng.integers(1, 200))
    held = rng.random((n_nodes, n_units)) < rng.random((n_nodes, 1)) * rng.random()
    held[:, rng.random(n_units) < rng.random()] = False
    names = [f"{name}-{rng.integers(1000)}" for name in names_of(n_nodes)]
    workers = rng.integers(1, 9, n_nodes)
    owners = assign(held, names, workers)
    packed = np.packbits(held, axis=1, bitorder="little")
    words = np.pad(packed, ((0, 0), (0, 64 - packed.shape[1]))).view("<u8")
    mine = assign_words(words, names, int(rng.choice([1, 2, 8])), int(rng.integers(99)))
    total = np.zeros(mine.shape[1], np.uint64)
    for one in mine:
        assert not (total & one).any()
        total |= one
    assert (total == ~np.uint64(0)).all()
    of_words = unpacked(mine, n_units)
    for chosen in (owners, of_words.argmax(axis=0)):
        assert chosen.shape == (n_units,)
        assert chosen.min() >= 0
        assert chosen.max() < n_nodes
        there = held.any(axis=0)
        assert held[chosen[there], np.flatnonzero(there)].all()


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


def test_very_many_units_are_about_even():
    words = np.zeros((10, 8 * 2000), np.uint64)
    for held in (words, ~words):
        for block_words, most in ((8, 1.25), (1, 1.1)):
            mine = assign_words(held.copy(), names_of(10), block_words)
            counts = np.bitwise_count(mine).sum(axis=1)
            assert counts.sum() == 64 * 8 * 2000
            assert counts.max() < most * counts.mean()


def test_blocks_of_units_are_many_but_not_too_many():
    for n_units in (1, 64 * MAX_BLOCKS, 64 * MAX_BLOCKS + 1, 10**9, 10**12):
        words = words_in_block(n_units)
        n_blocks = -(-n_units // (64 * words))
        assert n_blocks <= MAX_BLOCKS
        assert words == 1 or n_blocks > MAX_BLOCKS // 2


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Random cases, as many as wanted.")
    parser.add_argument("cases", type=int, nargs="?", default=10_000)
    n_cases = parser.parse_args().cases
    for case in range(n_cases):
        check_case(np.random.default_rng(case))
    print(f"{n_cases:,} of {n_cases:,} cases: each unit is read exactly once, where it is")
