"""How a Zarr tree stores positions: as integers of a source, rounded, or as floats. Pure.

Floats are compressed unasked only where bytes are dearer than decoding them. Measured on one core
(EPYC, 2.25 GHz) with frames of 3,341 and 16,122 atoms in full precision: lz4 after a shuffle of
bytes leaves 0.84 of them and decodes 5.5 to 8 GB/s; zstd leaves 0.90 to 0.93 and decodes 1.6 GB/s.
Reading then takes less time with lz4 if what is read comes at less than (1 - 0.84) of 5.5 GB/s.

Integers are bit-packed, or by what stays the same (``rigid``). Measured by `bench/codecs.py` on one
core of a busy machine (EPYC with AVX-512, load 25): rigid leaves 0.8 (protein) to 1.4 bytes (in
water) an atom fewer, and decodes in 3.7 and 3.6 ns an atom more. Reading takes less time with it if
what is read comes at less than 0.8 bytes in 3.7 ns to 1.4 in 3.6; what lies behind a network seldom
comes faster to each of several processes. Frames that are read one by one cost it several times as
much as bit-packed ones: outputs for that are not written so unasked. Those for a selection get
``rigid-seek``, by which fewer atoms are decoded beside the selected ones, in 2 to 4% more bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mdio.core.errors import PlanError
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.codecs.compressors import MEANT, full_option, quantised_from_option
from mdio.layouts.plan import WriteOptions
from mdio.layouts.striping.networks import is_network

LOSSLESS = "lz4"
PAYS_BELOW = "880 MB/s"
SMALLEST, SEEKING = "rigid", "rigid-seek"
SMALLEST_PAYS_BELOW = "210 to 390 MB/s"


@dataclass(frozen=True, slots=True)
class Choice:
    """What a plan says of it."""

    precision: float | None
    precision_source: Literal["asked", "xtc", None]
    compression: str | None
    notes: tuple[str, ...] = ()


def choose(info: TrajectoryInfo, options: WriteOptions) -> Choice:
    """Choose how positions are stored; raises PlanError for what Zarr trees cannot have."""
    asked, compression = options.precision, options.compression
    compression = None if compression == "none" else compression
    if isinstance(asked, float | int):
        return Choice(asked, "asked", *_integers(compression, options))
    if asked == "none" or not info.xtc_integers:
        return _floats(compression, options.file_system)
    if info.precision is None:
        note = "floats in full are stored: the XTC files joined here differ in their precision"
        return _floats(compression, options.file_system, note)
    try:
        quantised_from_option(info.precision, "xtc", compression)
    except PlanError:
        if asked == "auto":
            raise
        note = f"floats in full are stored: --compression {compression} is not for the integers"
        return _floats(compression, options.file_system, f"{note} that the XTC holds")
    note = (
        "positions are the integers that the XTC holds, bit for bit: programs need mdio installed "
        "to read them; --precision none stores floats for all"
    )
    compression, notes = _integers(compression, options)
    return Choice(info.precision, "xtc", compression, (note, *notes))


def _integers(compression: str | None, options: WriteOptions) -> tuple[str | None, tuple[str, ...]]:
    """Choose what packs integers, and say why."""
    file_system = options.file_system
    if compression is not None or file_system is None:
        return MEANT.get(compression or "", (None, compression))[1], ()
    saves = (
        "about a third fewer bytes, and is read in less time where a process gets less than "
        f"{SMALLEST_PAYS_BELOW}"
    )
    # Web pages read stores, and no rigid chunks.
    small = is_network(file_system) and file_system != "store"
    if small and options.pattern != "frames":
        name = SMALLEST if options.pattern == "blocks" else SEEKING
        why = (
            f"{name} is used: it takes {saves}, as on {file_system}; --compression fast is "
            "written and decoded faster"
        )
        return name, (why,)
    why = f"bitpack is used, the fastest to read; --compression {SMALLEST} takes {saves} from "
    return None, (why + _named(file_system),)


def _named(file_system: str) -> str:
    return "a store" if file_system == "store" else file_system


def _floats(compression: str | None, file_system: str | None, *notes: str) -> Choice:
    full = full_option(compression)
    if compression is None and file_system is not None:
        if is_network(file_system):
            full = full_option(LOSSLESS)
            why = (
                f"{LOSSLESS} is used, without loss: on {_named(file_system)} a process seldom gets "
                f"the {PAYS_BELOW} above which decoding takes longer than what it saves; "
                "--compression none stores bytes as they are"
            )
        else:
            why = f"not compressed: {file_system} is no file system of a network"
        notes = (*notes, why)
    return Choice(None, None, full, notes)
