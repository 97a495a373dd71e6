"""Compressors of a Zarr tree, as Zarr v3 names them; all are codecs of the standard set.

Metadata: https://zarr-specs.readthedocs.io/en/latest/v3/codecs/index.html
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import PlanError
from mdio.core.plug_ins import find_plug_ins
from mdio.core.words import did_you_mean
from mdio.layouts.codecs.quantised import RULES, WITHOUT_LEVEL, QuantisedFormat

Bytes = NDArray[np.uint8]

QUANTISED_NAME = "mdio.quantised"
"""Name of the codec of ours, in metadata and among zarr's entry points."""
QUANTISED_LEVELS = {"zstd": (1, 9, 1), "lz4": (1, 9, 5)}
"""Levels of codecs for integers: lowest, highest and default."""
MEANT = {"fast": ("lz4", "bitpack"), "small": ("zstd", "rigid")}
"""Names for what is wanted: of floats, of integers."""


class Compressor(ABC):
    """Bytes to fewer bytes, without loss, as a codec of Zarr v3 does it.

    A subclass for each codec. One in another package is found by an entry point of the group
    ``mdio.codecs``, whose name is that of the option; what reads its trees without mdio needs the
    codec too.
    """

    codec: ClassVar[str]
    """Its name in ``zarr.json``."""
    levels: ClassVar[tuple[int, int, int]] = (0, 0, 0)
    """The lowest and the highest level, and the one that is used unless another is asked for."""

    def __init__(self, level: int) -> None:
        self.level = level

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Self | None:
        """Undo `configuration`; None if it is not of this kind; raises ValueError, TypeError."""
        return cls(int(configuration.get("level", 0)))

    def configuration(self) -> dict[str, Any]:
        """Return the configuration for ``zarr.json``."""
        return {"level": self.level}

    @abstractmethod
    def encode(self, data: Bytes) -> bytes:
        """Compress."""

    @abstractmethod
    def decode(self, data: memoryview, out: Bytes) -> None:
        """Fill `out`; raises ValueError if that is not what `data` holds."""

    def metadata(self) -> dict[str, Any]:
        """Return the codec as it stands in ``zarr.json``."""
        return {"name": self.codec, "configuration": self.configuration()}


class Zstd(Compressor):
    """Zstandard."""

    codec = "zstd"
    levels = (1, 22, 3)

    def configuration(self) -> dict[str, Any]:
        """Return the level, without a checksum: Zarr's own follows."""
        return {"level": self.level, "checksum": False}

    def encode(self, data: Bytes) -> bytes:
        """Compress."""
        from numcodecs import zstd  # 0.1 s to import, as below

        packed: bytes = zstd.compress(data, self.level)
        return packed

    def decode(self, data: memoryview, out: Bytes) -> None:
        """Fill `out`; see the base class."""
        from numcodecs import zstd

        try:
            zstd.decompress(data, out)
        except RuntimeError as error:
            raise ValueError(str(error)) from error


class BloscLZ4(Compressor):
    """LZ4 after a shuffle of the bytes of float32."""

    codec = "blosc"
    levels = (1, 9, 5)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Self | None:
        """Undo `configuration`; None for Blosc's other compressors."""
        if configuration.get("cname") != "lz4":
            return None
        return cls(int(configuration.get("clevel", 0)))

    def configuration(self) -> dict[str, Any]:
        """Return Blosc's own."""
        options = {"typesize": 4, "cname": "lz4", "clevel": self.level}
        return options | {"shuffle": "shuffle", "blocksize": 0}

    def encode(self, data: Bytes) -> bytes:
        """Compress."""
        from numcodecs import blosc

        packed: bytes = blosc.compress(data, b"lz4", self.level, shuffle=1, typesize=4)
        return packed

    def decode(self, data: memoryview, out: Bytes) -> None:
        """Fill `out`; see the base class."""
        from numcodecs import blosc

        if len(data) < 16 or int.from_bytes(data[4:8], "little") != out.nbytes:
            raise ValueError(f"no Blosc buffer of {out.nbytes} bytes")
        try:
            blosc.decompress(data, out)
        except RuntimeError as error:
            raise ValueError(str(error)) from error


class Gzip(Compressor):
    """The codec that every reader has."""

    codec = "gzip"
    levels = (0, 9, 6)

    def encode(self, data: Bytes) -> bytes:
        """Compress."""
        packer = zlib.compressobj(self.level, wbits=31)  # 31: with the header of gzip
        return packer.compress(data.data) + packer.flush()

    def decode(self, data: memoryview, out: Bytes) -> None:
        """Fill `out`; see the base class."""
        unpacker = zlib.decompressobj(wbits=31)
        try:
            plain = unpacker.decompress(data, out.nbytes)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if len(plain) != out.nbytes:
            raise ValueError(f"{len(plain)} bytes, expected {out.nbytes}")
        out[...] = np.frombuffer(plain, np.uint8)


COMPRESSORS: Mapping[str, type[Compressor]] = {"zstd": Zstd, "lz4": BloscLZ4, "gzip": Gzip}
"""By the name of the option."""


@cache
def _plugins() -> Mapping[str, type[Compressor]]:
    """Return those of other packages."""
    return find_plug_ins("mdio.codecs", Compressor, COMPRESSORS)  # type: ignore[type-abstract]


def _all() -> Iterator[type[Compressor]]:
    """Yield ours, and look for others only where none of them is meant."""
    yield from COMPRESSORS.values()
    yield from _plugins().values()


def _with_level(
    option: str, levels: Mapping[str, tuple[int, int, int]], of: str
) -> tuple[str, int]:
    """Return the name and the level that an option has; raises PlanError.

    `levels`: levels by name. `of`: whose they are.
    """
    name, _, text = option.partition(":")
    if name not in levels:
        raise PlanError(
            f"--compression {option}: unknown{did_you_mean(name, (*MEANT, *levels))}; {of} has "
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


def compressor_from_option(option: str | None) -> Compressor | None:
    """Return the compressor of floats that ``--compression`` names; raises PlanError."""
    if option is None or option == "none":
        return None
    option = MEANT.get(option, (option,))[0]
    classes = COMPRESSORS
    if option.partition(":")[0] not in classes:
        classes = {**classes, **_plugins()}
    levels = {name: one.levels for name, one in classes.items()}
    name, level = _with_level(option, levels, "zarr")
    return classes[name](level)


def full_option(option: str | None) -> str | None:
    """Return ``--compression`` of floats with its level, None for none; raises PlanError."""
    compressor = compressor_from_option(option)
    if compressor is None or option is None:
        return None
    name = MEANT.get(option, (option,))[0].partition(":")[0]
    return f"{name}:{compressor.level}"


def compressor_from_metadata(codec: Mapping[str, Any]) -> Compressor:
    """Return the compressor that a codec of ``zarr.json`` names; raises ValueError."""
    name, configuration = codec.get("name"), codec.get("configuration") or {}
    for one in _all():
        if one.codec == name and (compressor := one.from_configuration(configuration)) is not None:
            return compressor
    raise ValueError(f"the codec {name!r}")


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
    name, level = _with_level(option, QUANTISED_LEVELS, "zarr with --precision")
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
