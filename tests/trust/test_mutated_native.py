"""Damaged native files: a clear error, or what an independent reader reads.

``MDIO_MUTATIONS=20000 pytest tests/trust/test_mutated_native.py`` tries more of them.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import struct
import warnings
from pathlib import Path

import MDAnalysis as mda
import numpy as np
import pytest
from suites.native_files import ALL, CELLS, made_up, write_dcd, write_ncdf, write_trr

from mdio.core.errors import MdioError
from mdio.layouts.registry import open_layout

N_MUTATIONS = int(os.environ.get("MDIO_MUTATIONS", "90"))
MEMORY_NBYTES = 4 << 30
SECONDS = 20


def make(kind: str, folder: Path) -> Path:
    path = folder / f"whole.{kind}"
    if kind == "dcd":
        write_dcd(path, made_up(4, 5), CELLS[:4])
    elif kind == "trr":
        write_trr(path, ["xv"] * 4)
    else:
        write_ncdf(path, ALL)
    return path


def mutate(raw: bytes, random: np.random.Generator) -> bytes:
    """Flip bits, set header fields to what tempts, or cut."""
    data = bytearray(raw)
    head = min(len(data), 1400)
    for _ in range(int(random.integers(1, 4))):
        how = random.integers(0, 4)
        at = int(random.integers(0, head if random.random() < 0.7 else len(data)))
        if how == 0:
            data[at] ^= 1 << int(random.integers(0, 8))
        elif how == 1:
            data[at] = int(random.integers(0, 256))
        elif how == 2:
            at -= at % 4
            value = int(random.choice([0, 1, -1, 2, 2**31 - 1, -(2**31), 48, 84]))
            data[at : at + 4] = struct.pack(str(random.choice(["<i", ">i"])), value)
        elif random.random() < 0.2:
            del data[int(random.integers(0, len(data))) :]
            data = data or bytearray(b"\0")
            head = min(len(data), head)
    return bytes(data)


def by_mdio(path: Path) -> object:
    try:
        with open_layout(path) as layout:
            return layout.read(0, layout.info.n_frames).positions
    except MdioError as error:
        return str(error)


def by_others(path: Path) -> object:
    """Read with MDAnalysis, as far as it goes; a `str` where it does not go at all."""
    frames = []
    try:
        with mda.coordinates.core.get_reader_for(str(path))(str(path)) as reader:
            frames += [ts.positions.copy() for ts in reader]
    except Exception as error:
        if not frames:
            return repr(error)
    return np.array(frames)


def in_a_process(function, path: Path) -> object:
    """Call it where memory and time are limited, and a crash kills nobody else."""

    def call(sending) -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_NBYTES, MEMORY_NBYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            sending.send(function(path))

    fork = multiprocessing.get_context("fork")
    receiving, sending = fork.Pipe(duplex=False)
    process = fork.Process(target=call, args=(sending,))
    process.start()
    sending.close()
    try:
        return receiving.recv()
    except EOFError:
        return None
    finally:
        process.join()


def same(mine: np.ndarray, theirs: np.ndarray) -> bool:
    n = min(len(mine), len(theirs))
    return mine.shape[1:] == theirs.shape[1:] and np.array_equal(
        mine[:n], theirs[:n], equal_nan=True
    )


@pytest.mark.parametrize("kind", ["dcd", "ncdf", "trr"])
def test_damaged_files_are_an_error_or_read_as_others_read_them(tmp_path, kind):
    raw = make(kind, tmp_path).read_bytes()
    path = tmp_path / f"mutated.{kind}"
    counts = dict.fromkeys(("error", "equal", "others fail", "differ"), 0)
    different = []
    for seed in range(N_MUTATIONS // 3):
        path.write_bytes(mutate(raw, np.random.default_rng(seed)))
        mine = in_a_process(by_mdio, path)
        assert mine is not None, f"seed {seed}: crashed, or took too long or too much memory"
        if isinstance(mine, str):
            counts["error"] += 1
            continue
        theirs = in_a_process(by_others, path)
        if not isinstance(theirs, np.ndarray) or not len(theirs):
            counts["others fail"] += 1
        elif same(mine, theirs):
            counts["equal"] += 1
        else:
            counts["differ"] += 1
            different.append(seed)
    print(kind, counts)
    assert not different, (kind, counts, different)
