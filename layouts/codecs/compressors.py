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

from mdio.core.errors import OutputError, PlanError, error_text
from mdio.core.words import did_you_mean
from mdio.layouts.codecs.quantised import PACKING_CODECS, RULES, QuantisedFormat, decompress

Bytes = NDArray[np.uint8]

QUANTISED_NAME = "mdio.quantised"
"""Name of mdio's own codec, in metadata and among zarr's entry points."""
QUANTISED_LEVELS = {"zstd": (1, 9, 1), "lz4": (1, 9, 5)}
"""Levels of codecs for integers: lowest, highest and default."""
PRESETS = {"fast": ("lz4", "bitpack"), "small": ("zstd", "rigid")}
"""Presets of ``--compression``, and the compressors that they select: of floats, of integers."""


class Compressor(ABC):
    """A lossless codec of Zarr v3, from bytes to bytes.

    A subclass in another package is found by an entry point of the group ``mdio.codecs``, whose
    name is that of the option; programs that read its trees without mdio need the codec, too.
    """

    codec: ClassVar[str]
    """Its name in ``zarr.json``."""
    levels: ClassVar[tuple[int, int, int]] = (0, 0, 0)
    """The lowest, the highest and the default level."""
    is_plug_in: ClassVar[bool] = False
    """Whether it is of another package, not tested by mdio: its decoded data are compared."""

    def __init__(self, level: int) -> None:
        self.level = level

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Self | None:
        """Return the codec with this configuration; None if it belongs to another codec.

        Raises ValueError, TypeError: the configuration is invalid.
        """
        return cls(int(configuration.get("level", 0)))

    def configuration(self) -> dict[str, Any]:
        """Return the configuration for ``zarr.json``."""
        return {"level": self.level}

    @abstractmethod
    def encode(self, data: Bytes) -> bytes:
        """Compress."""

    @abstractmethod
    def decode(self, data: memoryview, out: Bytes) -> None:
        """Decompress into `out`; raises ValueError if `data` is invalid or has another size."""

    def metadata(self) -> dict[str, Any]:
        return {"name": self.codec, "configuration": self.configuration()}


class Zstd(Compressor):
    """Zstandard."""

    codec = "zstd"
    levels = (1, 22, 3)

    def configuration(self) -> dict[str, Any]:
        """Return the level, without a checksum, since a codec of Zarr adds one."""
        return {"level": self.level, "checksum": False}

    def encode(self, data: Bytes) -> bytes:
        from numcodecs import zstd  # 0.1 s to import

        compressed: bytes = zstd.compress(data, self.level)
        return compressed

    def decode(self, data: memoryview, out: Bytes) -> None:
        from numcodecs import zstd

        # Of fewer bytes, the end of `out` would stay as it was.
        if (nbytes := _zstd_content_nbytes(data)) != out.nbytes:
            raise ValueError(f"{nbytes} bytes, expected {out.nbytes}")
        try:
            zstd.decompress(data, out)
        except RuntimeError as error:
            raise ValueError(str(error)) from error


def _zstd_content_nbytes(data: memoryview) -> int:
    """Return the decoded bytes that a frame of Zstandard states (RFC 8878, 3.1.1.1)."""
    head = bytes(data[:18])
    if len(head) < 6 or not head.startswith(b"\x28\xb5\x2f\xfd"):
        raise ValueError("not a frame of Zstandard")
    flags = head[4]
    is_single = flags >> 5 & 1
    width = (is_single, 2, 4, 8)[flags >> 6]
    start = 5 + (1 - is_single) + (0, 1, 2, 4)[flags & 3]
    return int.from_bytes(head[start : start + width], "little") + 256 * (width == 2)


class BloscLZ4(Compressor):
    """LZ4 after a shuffle of the bytes of float32."""

    codec = "blosc"
    levels = (1, 9, 5)

    @classmethod
    def from_configuration(cls, configuration: Mapping[str, Any]) -> Self | None:
        """Return the codec; None for Blosc's other compressors."""
        if configuration.get("cname") != "lz4":
            return None
        return cls(int(configuration.get("clevel", 0)))

    def configuration(self) -> dict[str, Any]:
        options = {"typesize": 4, "cname": "lz4", "clevel": self.level}
        return options | {"shuffle": "shuffle", "blocksize": 0}

    def encode(self, data: Bytes) -> bytes:
        from numcodecs import blosc

        compressed: bytes = blosc.compress(data, b"lz4", self.level, shuffle=1, typesize=4)
        return compressed

    def decode(self, data: memoryview, out: Bytes) -> None:
        decompress(data, out)


class Gzip(Compressor):
    """Gzip, which every reader of Zarr has."""

    codec = "gzip"
    levels = (0, 9, 6)

    def encode(self, data: Bytes) -> bytes:
        compressor = zlib.compressobj(self.level, wbits=31)  # 31: with the header of gzip
        return compressor.compress(data.data) + compressor.flush()

    def decode(self, data: memoryview, out: Bytes) -> None:
        decompressor = zlib.decompressobj(wbits=31)
        try:
            decompressed = decompressor.decompress(data, out.nbytes + 1)
        except zlib.error as error:
            raise ValueError(str(error)) from error
        if not decompressor.eof and len(decompressed) == out.nbytes:
            raise ValueError("its end is missing")
        if len(decompressed) != out.nbytes:
            raise ValueError(f"{len(decompressed)} bytes, expected {out.nbytes}")
        out[...] = np.frombuffer(decompressed, np.uint8)


COMPRESSORS: Mapping[str, type[Compressor]] = {"zstd": Zstd, "lz4": BloscLZ4, "gzip": Gzip}
"""Compressors of mdio by their names in ``--compression``."""


@cache
def _plug_ins() -> Mapping[str, type[Compressor]]:
    from mdio.core.plug_ins import find_plug_ins  # seldom needed

    return find_plug_ins("mdio.codecs", Compressor, COMPRESSORS, check=_check_and_mark)  # type: ignore[type-abstract]


def _check_and_mark(cls: type[Compressor]) -> None:
    """Mark a class of another package; raises TypeError if it lacks something."""
    if missing := sorted(cls.__abstractmethods__):
        raise TypeError(f"{cls.__name__} has no method {' and no '.join(missing)}")
    if not isinstance(codec := getattr(cls, "codec", None), str):
        raise TypeError(f"{cls.__name__}.codec is {codec!r}; give its name in zarr.json")
    levels: Any = cls.levels
    is_triple = isinstance(levels, tuple | list) and [type(one) for one in levels] == [int] * 3
    if not is_triple or not levels[0] <= levels[2] <= levels[1]:
        raise TypeError(
            f"{cls.__name__}.levels is {levels!r}; give the lowest, the highest and the default "
            "level: (0, 9, 6)"
        )
    cls.is_plug_in = True


def compress(compressor: Compressor, data: Bytes) -> Bytes:
    """Return `data` compressed; raises OutputError if a plug-in's codec does not decode it again.

    mdio's own codecs are tested; chunks of others are decoded once, and compared.
    """
    encoded = np.frombuffer(compressor.encode(data), np.uint8)
    if compressor.is_plug_in:
        decoded, problem = ~data, "other bytes"  # no byte is right unless it is decoded
        try:
            compressor.decode(encoded.data, decoded)
        except Exception as error:  # a user's codec raises anything
            problem = error_text(error)
        if not np.array_equal(decoded, data):
            raise OutputError(
                f"the codec {compressor.codec!r} does not give back what it was given "
                f"({problem}): nothing was written; mend it, or take another --compression"
            )
    return encoded


def _compressor_classes() -> Iterator[type[Compressor]]:
    """Yield mdio's compressors, then those of other packages, which are looked up only then."""
    yield from COMPRESSORS.values()
    yield from _plug_ins().values()


def _parse_level(
    option: str,
    levels: Mapping[str, tuple[int, int, int]],
    layout_name: str,
    *names_without_level: str,
) -> tuple[str, int]:
    """Return the name and the level in an option; raises PlanError.

    `levels`: of the compressors, by name. `layout_name`: for messages.
    `names_without_level`: other compressors of the layout, which have no levels.
    """
    name, _, text = option.partition(":")
    names_without_level = (*names_without_level, *PRESETS)
    if name in names_without_level:
        raise PlanError(f"--compression {option}: {name} has no levels; leave out :{text}")
    if name in PACKING_CODECS:
        raise PlanError(
            f"--compression {option}: stores integers, and these are floats, as of a source "
            "without a precision, or after --pbc, --center or --fit; give --precision 0.01, or "
            "take another"
        )
    if name not in levels:
        hint = did_you_mean(name, (*names_without_level, *levels))
        names_text = ", ".join([*(f"{n}[:LEVEL]" for n in levels), *names_without_level])
        raise PlanError(f"--compression {option}: unknown{hint}; {layout_name} has {names_text}")
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
    option = PRESETS.get(option, (option,))[0]
    classes = COMPRESSORS
    if option.partition(":")[0] not in classes:
        classes = {**classes, **_plug_ins()}
    levels = {name: cls.levels for name, cls in classes.items()}
    name, level = _parse_level(option, levels, "zarr")
    return classes[name](level)


def option_with_level(option: str | None) -> str | None:
    """Return ``--compression`` of floats with its level; None without one; raises PlanError."""
    compressor = compressor_from_option(option)
    if compressor is None or option is None:
        return None
    name = PRESETS.get(option, (option,))[0].partition(":")[0]
    return f"{name}:{compressor.level}"


def compressor_from_metadata(codec: Mapping[str, Any]) -> Compressor:
    """Return the compressor that a codec of ``zarr.json`` names; raises ValueError."""
    name, configuration = codec.get("name"), codec.get("configuration") or {}
    for cls in _compressor_classes():
        if cls.codec == name and (compressor := cls.from_configuration(configuration)) is not None:
            return compressor
    raise ValueError(
        f"the codec {name!r} is neither mdio's nor that of a plug-in that is installed here; if a "
        "plug-in has it, install that"
    )


def quantised_from_option(step: float, rule: str | None, option: str | None) -> QuantisedFormat:
    """Return the format of positions that are rounded to this step; raises PlanError.

    `step`: angstrom. `rule`: `LayoutPlan.precision_source`. `option`: of ``--compression``:
    ``zstd[:LEVEL]``, ``lz4[:LEVEL]``, ``rigid`` (``small``), ``rigid-seek``, or ``bitpack``
    (``fast``), the default.
    """
    if not 0 < step < np.inf:
        raise PlanError(f"--precision is {step}; give a positive step in angstrom")
    quantised_format = QuantisedFormat(step, "step" if rule in (None, "asked") else "xtc")
    name: Any = PRESETS.get(option or "none", (None, option))[1]
    if name in (None, "none", quantised_format.compression):
        return quantised_format
    if name in PACKING_CODECS:
        return replace(quantised_format, compressor=name)
    name, level = _parse_level(name, QUANTISED_LEVELS, "zarr with --precision", *PACKING_CODECS)
    return replace(quantised_format, compressor=name, level=level)


def quantised_metadata(quantised_format: QuantisedFormat) -> dict[str, Any]:
    """Return the entry of mdio's codec in ``zarr.json``."""
    options: dict[str, Any] = {
        "rule": quantised_format.rule,
        "step_angstrom": quantised_format.step,
    }
    options |= {"compressor": quantised_format.compressor}
    if quantised_format.compressor not in PACKING_CODECS:
        options |= {"level": quantised_format.level}
    return {"name": QUANTISED_NAME, "configuration": options}


def quantised_from_metadata(options: Mapping[str, Any]) -> QuantisedFormat:
    """Return the format with this configuration of mdio's codec; raises ValueError."""
    try:
        step, rule = float(options["step_angstrom"]), options["rule"]
        quantised_format = QuantisedFormat(step, rule, options["compressor"])
        if quantised_format.compressor not in PACKING_CODECS:
            quantised_format = replace(quantised_format, level=int(options["level"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{QUANTISED_NAME} is configured as {dict(options)}") from error
    compressors = (*PACKING_CODECS, *QUANTISED_LEVELS)
    if not 0 < step < np.inf or rule not in RULES or quantised_format.compressor not in compressors:
        raise ValueError(f"{QUANTISED_NAME} is configured as {dict(options)}")
    return quantised_format
