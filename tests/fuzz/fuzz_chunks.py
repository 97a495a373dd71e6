"""Damage chunks of quantised positions and decode them, Blosc included, for some seconds.

``python tests/fuzz/fuzz_chunks.py SECONDS LAST [SEED]``. Every input gives numbers or ValueError;
another exception, a crash of the process or a call for much memory is a finding, and the file LAST
has the input. What libFuzzer cannot see from C++ is here: the header that Python parses, and
numcodecs.
"""

from __future__ import annotations

import resource
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np

from mdio.layouts.codecs.quantised import HEADER, QuantisedFormat, decode_chunk, encode_chunk

SHAPE = (6, 50)
MEMORY = 4 << 30
INTERESTING = [0, 1, 0x7F, 0x80, 0xFF]


def chunks(rng: np.random.Generator) -> list[bytes]:
    """Return chunks of every mode."""
    close = np.cumsum(rng.normal(0, 0.05, (*SHAPE, 3)), axis=0) + rng.uniform(
        0, 50, (1, SHAPE[1], 3)
    )
    far = np.cumsum(rng.normal(0, 1, (*SHAPE, 3)), axis=1) + rng.uniform(0, 50, (SHAPE[0], 1, 3))
    broken = np.full((*SHAPE, 3), np.nan)
    found = []
    for compressor in ("bitpack", "rigid", "rigid-seek", "zstd", "lz4"):
        for x in (close, far, broken):
            x = x.astype(np.float32)
            found.append(encode_chunk(x, QuantisedFormat(0.01, compressor=compressor)))
            xtc = np.rint(x * 100).astype(np.float32) * np.float32(0.001) * np.float32(10)
            form = QuantisedFormat(0.01, rule="xtc", compressor=compressor)
            found.append(encode_chunk(xtc, form))
    return found


def damage(chunk: bytes, rng: np.random.Generator) -> bytes:
    """Change some bytes, more often those of headers, and cut; sizes mostly still agree."""
    data = bytearray(chunk)
    for _ in range(rng.integers(1, 8)):
        end = len(data) if rng.random() < 0.5 else min(len(data), HEADER.size + 32)
        at = int(rng.integers(4, end))
        data[at] = rng.choice(INTERESTING) if rng.random() < 0.3 else rng.integers(0, 256)
    if rng.random() < 0.3:
        del data[int(rng.integers(HEADER.size, len(data))) :]
    head = list(HEADER.unpack_from(data))
    if rng.random() < 0.7:  # else nothing gets beyond the first checks
        head[0], head[4:6] = b"mdq1", SHAPE
        head[1] %= 11
        if head[1] <= 8:  # beyond, any number is as good
            head[2] = 0 if head[1] > 4 else 2 if head[2] == 2 else 4
        head[7] = min(head[7], len(data) - HEADER.size)
        head[8] = len(data) - HEADER.size - head[7]
        HEADER.pack_into(data, 0, *head)
        for begin, size in ((HEADER.size, head[7]), (HEADER.size + head[7], head[8])):
            if size >= 16 and rng.random() < 0.8:  # Blosc's own count of its bytes
                data[begin + 12 : begin + 16] = size.to_bytes(4, "little")
    return bytes(data)


def main() -> None:
    """Go on until the time is over."""
    seconds, last = float(sys.argv[1]), Path(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else time.time_ns()
    rng = np.random.default_rng(seed)
    seeds = chunks(rng)
    out = np.empty((*SHAPE, 3), np.float32)
    results: Counter[str] = Counter()
    begun = time.monotonic()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    while time.monotonic() - begun < seconds:
        data = damage(seeds[rng.integers(len(seeds))], rng)
        last.write_bytes(data)
        try:
            decode_chunk(memoryview(data), SHAPE, out)
            results["decoded"] += 1
        except ValueError:
            results["refused"] += 1
    last.unlink(missing_ok=True)
    print(f"{sum(results.values())} chunks (seed {seed}): {dict(results)}")


if __name__ == "__main__":
    main()
