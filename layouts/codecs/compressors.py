"""Compressors of a Zarr tree, as Zarr v3 names them; all are codecs of the standard set.

Metadata: https://zarr-specs.readthedocs.io/en/latest/v3/codecs/index.html
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import PlanError
from mdio.core.words import did_you_mean
from mdio.layouts.codecs.quantised import RULES, WITHOUT_LEVEL, QuantisedFormat

Bytes = NDArray[np.uint8]

QUANTISED_NAME = "mdio.quantised"
"""Name of the codec of ours, in metadata and among zarr's entry points."""
LEVELS = {"zstd": (1, 22, 3), "lz4": (1, 9, 5), "gzip": (0, 9, 6)}
"""Lowest and highest level of each compressor, and the level without one."""
QUANTISED_LEVELS = {"zstd": (1, 9, 1), "lz4": (1, 9, 5)}
MEANT = {"fast": ("lz4", "bitpack"), "small": ("zstd", "rigid")}
"""Names for what is wanted: of floats, of integers."""


class Compressor(Protocol):
    """Bytes to fewer bytes, without loss."""

    def metadata(self) -> dict[str, Any]:
        """Return the codec as it stands in ``zarr.json``."""

    def encode(self, data: Bytes) -> bytes:
        """Compress."""

    def decode(self, data: memoryview, out: Bytes) -> None:
        """Fill `out`; raises ValueError if that is not what `data` holds."""


@dataclass(frozen=True, slots=True)
class _OfLevel:
    level: int


class _Zstd(_OfLevel):
    __slots__ = ()

    def metadata(self) -> dict[str, Any]:
        return {"name": "zstd", "configuration": {"level": self.level, "checksum": False}}

    def encode(self, data: Bytes) -> bytes:
        from numcodecs import zstd  # 0.1 s to import, as below

        packed: bytes = zstd.compress(data, self.level)
        return packed

    def decode(self, data: memoryview, out: Bytes) -> None:
        from numcodecs import zstd

        try:
            zstd.decompress(data, out)
        except RuntimeError as error:
            raise ValueError(str(error)) from error


class _BloscLZ4(_OfLevel):
    __slots__ = ()

    def metadata(self) -> dict[str, Any]:
        options = {"typesize": 4, "cname": "lz4", "clevel": self.level}
        options |= {"shuffle": "shuffle", "blocksize": 0}
        return {"name": "blosc", "configuration": options}

    def encode(self, data: Bytes) -> bytes:
        from numcodecs import blosc

        packed: bytes = blosc.compress(data, b"lz4", self.level, shuffle=1, typesize=4)
        return packed

    def decode(self, data: memoryview, out: Bytes) -> None:
        from numcodecs import blosc

        if len(data) < 16 or int.from_bytes(data[4:8], "little") != out.nbytes:
            raise ValueError(f"no Blosc buffer of {out.nbytes} bytes")
        try:
            blosc.decompress(data, out)
        except RuntimeError as error:
            raise ValueError(str(error)) from error


class _Gzip(_OfLevel):
    __slots__ = ()

    def metadata(self) -> dict[str, Any]:
        return {"name": "gzip", "configuration": {"level": self.level}}

    def encode(self, data: Bytes) -> bytes:
        packer = zlib.compressobj(self.level, wbits=31)  # 31: with the header of gzip
        return packer.compress(data.data) + packer.flush()

    def decode(self, data: memoryview, out: Bytes) -> None:
        unpacker = zlib.decompressobj(wbits=31)
        try:
            plain = unpacker.decompress(data, out.nbytes)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if len(plain) != out.nbytes:
            raise ValueError(f"{len(plain)} bytes, expected {out.nbytes}")
        out[...] = np.frombuffer(plain, np.uint8)


def _split(option: str, levels: Mapping[str, tuple[int, int, int]], what: str) -> tuple[str, int]:
    name, _, text = option.partition(":")
    if name not in levels:
        raise PlanError(
            f"--compression {option}: unknown{did_you_mean(name, (*MEANT, *levels))}; {what} has "
            f"{', '.join(f'{n}[:LEVEL]' for n in levels)}, and {', '.join(MEANT)}"
        )
    low, high, default = levels[name]
    try:
        level = int(text) if text else default
    except ValueError:
        level = low - 1
    if not low <= level <= high:
        raise PlanError(f"--compression {option}: the level of {name} must be {low} to {high}")
    return name, level


def full_option(option: str | None) -> str | None:
    """Return ``--compression`` with its level, None for none; raises PlanError."""
    if option is None or option == "none":
        return None
    name, level = _split(MEANT.get(option, (option,))[0], LEVELS, "zarr")
    return f"{name}:{level}"


def compressor_from_option(option: str | None) -> Compressor | None:
    """Return what ``--compression`` asks for; raises PlanError."""
    option = full_option(option)
    if option is None:
        return None
    name, level = _split(option, LEVELS, "zarr")
    kinds: dict[str, type[_Zstd] | type[_BloscLZ4] | type[_Gzip]]
    kinds = {"zstd": _Zstd, "lz4": _BloscLZ4, "gzip": _Gzip}
    return kinds[name](level)


def quantised_from_option(step: float, rule: str | None, option: str | None) -> QuantisedFormat:
    """Return how positions of this step are stored.

    `step`: angstrom. `rule`: `LayoutPlan.precision_source`. `option`: ``--compression``:
    ``zstd[:LEVEL]`` or ``lz4[:LEVEL]``, ``rigid`` (``small``), ``rigid-seek``, or ``bitpack``
    (``fast``), the default.
    Raises PlanError: a step that is not positive, or another compressor.
    """
    if not 0 < step < np.inf:
        raise PlanError(f"--precision is {step}; give a positive step in angstrom")
    form = QuantisedFormat(step, "step" if rule in (None, "asked") else "xtc")
    option = MEANT.get(option or "none", (None, option))[1]
    if option in (None, "none", form.compression):
        return form
    if option == "rigid":
        return replace(form, compressor="rigid")
    if option == "rigid-seek":
        return replace(form, compressor="rigid-seek")
    name, level = _split(option, QUANTISED_LEVELS, "zarr with --precision")
    return replace(form, compressor="lz4" if name == "lz4" else "zstd", level=level)


def quantised_metadata(form: QuantisedFormat) -> dict[str, Any]:
    """Return the codec of ours as it stands in ``zarr.json``."""
    options: dict[str, Any] = {"rule": form.rule, "step_angstrom": form.step}
    options |= {"compressor": form.compressor}
    if form.compressor not in WITHOUT_LEVEL:
        options |= {"level": form.level}
    return {"name": QUANTISED_NAME, "configuration": options}


def quantised_from_metadata(options: Mapping[str, Any]) -> QuantisedFormat:
    """Undo `quantised_metadata`, given its configuration; raises ValueError."""
    try:
        step, rule = float(options["step_angstrom"]), options["rule"]
        form = QuantisedFormat(step, rule, options["compressor"])
        if form.compressor not in WITHOUT_LEVEL:
            form = replace(form, level=int(options["level"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{QUANTISED_NAME} is configured as {dict(options)}") from error
    compressors = (*WITHOUT_LEVEL, *QUANTISED_LEVELS)
    if not 0 < step < np.inf or rule not in RULES or form.compressor not in compressors:
        raise ValueError(f"{QUANTISED_NAME} is configured as {dict(options)}")
    return form


def compressor_from_metadata(codec: Mapping[str, Any]) -> Compressor:
    """Return the compressor that a codec of ``zarr.json`` names; raises ValueError."""
    name, options = codec.get("name"), codec.get("configuration") or {}
    if name == "zstd":
        return _Zstd(int(options.get("level", 0)))
    if name == "gzip":
        return _Gzip(int(options.get("level", 0)))
    if name == "blosc" and options.get("cname") == "lz4":
        return _BloscLZ4(int(options.get("clevel", 0)))
    raise ValueError(f"the codec {name!r}")
