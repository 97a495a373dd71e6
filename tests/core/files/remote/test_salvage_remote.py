"""Damaged files in a store are looked at in large pieces, and found to hold what they hold here."""

import random

import numpy as np
import pytest
from suites.native_files import CELLS, made_up, write_dcd

import mdio
from mdio.layouts.native import file as native_file

N_FRAMES = 400


@pytest.fixture(scope="module", params=["xtc", "trr"])
def whole(served, request, tmp_path_factory):
    """The bytes of a file of 400 frames, and where these begin."""
    folder = tmp_path_factory.mktemp("whole")
    write_dcd(folder / "a.dcd", made_up(N_FRAMES, 300), np.resize(CELLS, (N_FRAMES, 6)))
    path = folder / f"a.{request.param}"
    mdio.convert(folder / "a.dcd", path)
    with mdio.open(path) as layout:
        return path.read_bytes(), layout.index.offsets.tolist(), path.suffix


def damaged(whole, seed):
    """Return the bytes with damage in three places: headers, bytes within frames, long runs."""
    data, offsets, _ = whole
    data, dice = bytearray(data), random.Random(seed)
    for _ in range(3):
        at = dice.choice(offsets[5:-5]) + dice.choice([0, 0, 40, 500])
        n = dice.choice([1, 60, 30_000])
        data[at : at + n] = bytes([dice.choice([0, 255])]) * len(data[at : at + n])
    if dice.random() < 0.3:
        del data[-200:]
    return bytes(data)


def indices(web, name, data):
    """Return what is found of a file here, and of the same on the web server."""
    (web.root / name).write_bytes(data)
    web.log.clear()
    found = []
    for at in (web.root, web.url):
        with mdio.open(f"{at}/{name}", salvage=True) as layout:
            index = layout.index
            found.append(
                (index.offsets.tolist(), index.end, index.lost_nbytes, layout._intact_frames)
            )
    return found


@pytest.mark.parametrize("seed", range(4))
def test_is_looked_at_in_large_pieces(web, whole, seed):
    here, there = indices(web, f"damaged{seed}{whole[2]}", damaged(whole, seed))
    assert here == there
    assert len(web.log) < 40  # and not one or two for each of 400 frames


@pytest.mark.parametrize("seed", range(6))
def test_is_found_by_reads_of_any_size(web, whole, seed, monkeypatch):
    monkeypatch.setattr(native_file, "SCANNED_NBYTES", 20_000)
    monkeypatch.setattr(
        native_file, "STORE_READ_NBYTES", random.Random(seed).randrange(9000, 70_000)
    )
    here, there = indices(web, f"cut{seed}{whole[2]}", damaged(whole, seed))
    assert here == there
