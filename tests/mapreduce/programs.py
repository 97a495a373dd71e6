"""Maps and reduces that the tests run, and what they give, worked out frame by frame."""

import os
import signal

import numpy as np


class Windows:
    """Which of some atoms are in a window of x, and their places: pairs of uneven numbers."""

    select = "name CA"

    def __init__(self, keys="atom", order="frames"):
        self.keys, self.order = keys, order

    def map(self, block):
        x = block.positions[:, :, 0]
        rows, atoms = np.nonzero((x > -5) & (x < 5))
        if self.order == "atoms":  # frames of a block out of order
            shuffled = np.argsort(atoms, kind="stable")
            rows, atoms = rows[shuffled], atoms[shuffled]
        keys = {
            "atom": atoms,
            "text": np.array([f"atom {'x' * (n % 7)}{n}" for n in atoms], str),
            "few": atoms % 3,
            "one": np.zeros(len(atoms), np.int8),
            "float": atoms / 8 - 10.0,
        }[self.keys]
        places = block.positions[rows, atoms]
        return keys, rows, {"place": places, "atom": atoms.astype(np.int32)}

    def reduce(self, key, frame, time, values):
        if self.keys != "atom" and self.keys != "text" and self.keys != "float":
            # Of one frame, values come in the order of the map.
            assert np.all((np.diff(frame) > 0) | (np.diff(values["atom"]) > 0))
        assert np.all(np.diff(frame) >= 0) and np.all(np.diff(time) >= 0)
        weights = np.arange(1, len(frame) + 1)
        return {
            "n": len(frame),
            "first": frame[0],
            "last_ps": time[-1],
            "ordered": (weights[:, None] * values["place"].astype(float)).sum(axis=0),
            "name": f"key {key}",
        }


def one_by_one(block):
    """Give the same pairs as `Windows`, of a block of one frame."""
    assert block.n_frames == 1
    for atom, place in enumerate(block.positions[0]):
        if -5 < place[0] < 5:
            yield atom, {"place": place, "atom": np.int32(atom)}


def nothing(block):
    return np.empty(0, int), np.empty(0, int), {}


def in_order(key, frame, time, values):
    """Return everything, to be compared in full."""
    return {"digest": hash((tuple(frame), tuple(time), values["x"].tobytes()))}


def fails_for_odd(key, frame, time, values):
    if key % 2:
        raise ValueError("odd")
    return {"n": len(frame)}


def bins(block):
    """Count atoms in slices of x: a histogram, which a combiner makes small."""
    x = np.floor(block.positions[:, :, 0]).astype(int)
    rows = np.repeat(np.arange(len(x)), x.shape[1])
    return x.ravel(), rows, {"n": np.ones(x.size, np.int64), "least": x.ravel()}


def total(key, frame, time, values):
    return {"n": values["n"].sum()}


def distinct(keys, values):
    """Combine pairs of one key into the first, as ``sum`` does."""
    firsts = np.flatnonzero(np.diff(keys, prepend=keys[0] - 1))
    return firsts, {name: np.add.reduceat(one, firsts) for name, one in values.items()}


def text_later(block):
    n = block.n_frames
    keys = np.arange(n) if block.time[0] < 40 else np.array(["a"] * n)
    return keys, np.arange(n), {"n": np.ones(n)}


def wider_later(block):
    n = block.n_frames
    return np.arange(n), np.arange(n), {"n": np.ones(n if block.time[0] < 40 else (n, 2))}


def dies(block):
    """Be killed in one block."""
    if block.time[0] > 60:
        os.kill(os.getpid(), signal.SIGKILL)
    return bins(block)


def fails_late(block):
    if block.time[-1] > 60:
        raise ZeroDivisionError("no such angle")
    return bins(block)


class KilledInMap(Windows):
    """Its process is killed, once."""

    def __init__(self, path):
        super().__init__("few")
        self.path = str(path)

    def kill(self):
        try:
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    def map(self, block):
        if block.time[0] > 60:
            self.kill()
        return super().map(block)


class KilledInReduce(KilledInMap):
    """Under Dask, pairs that the worker had mapped are lost with it."""

    def map(self, block):
        return Windows.map(self, block)

    def reduce(self, key, frame, time, values):
        if key == 2:
            self.kill()
        return super().reduce(key, frame, time, values)
