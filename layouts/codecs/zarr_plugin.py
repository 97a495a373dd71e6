"""The codecs of quantised positions and of XTC frames as plug-ins of zarr; mdio does not need them.

zarr finds them by their names in metadata, through the entry point group ``zarr.codecs``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from zarr.abc.codec import ArrayBytesCodec, BytesBytesCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer, NDBuffer

from mdio.layouts.codecs.compressors import (
    QUANTISED_NAME,
    quantised_from_metadata,
    quantised_metadata,
)
from mdio.layouts.codecs.numcodecs_plugin import XTCFrame
from mdio.layouts.codecs.quantised import QuantisedFormat, decode_chunk, encode_chunk


@dataclass(frozen=True)
class QuantisedCodec(ArrayBytesCodec):
    """Positions (frames, atoms, 3) as compressed integers, instead of the codec ``bytes``.

    `step_angstrom`: step of the integers. `rule`: ``step``, or ``xtc``: the integers of an XTC with
    this step, or floats if these would lose anything. `compressor`: ``bitpack``, ``rigid``,
    ``rigid-seek``, ``zstd`` or ``lz4``. `level`: of zstd and lz4.
    """

    is_fixed_size = False

    step_angstrom: float
    rule: str = "step"
    compressor: str = "bitpack"
    level: int = 1

    @property
    def _format(self) -> QuantisedFormat:
        options = {"rule": self.rule, "step_angstrom": self.step_angstrom}
        return quantised_from_metadata(
            options | {"compressor": self.compressor, "level": self.level}
        )

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        if data.get("name") != QUANTISED_NAME:
            raise ValueError(f"{data.get('name')!r} is not {QUANTISED_NAME!r}")
        quantised_format = quantised_from_metadata(data.get("configuration") or {})
        return cls(
            quantised_format.step,
            quantised_format.rule,
            quantised_format.compressor,
            quantised_format.level,
        )

    def to_dict(self) -> dict[str, Any]:
        return quantised_metadata(self._format)

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Raise NotImplementedError: the size depends on the numbers."""
        raise NotImplementedError

    def _decode_sync(self, chunk_bytes: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        n_frames, n_atoms, _ = chunk_spec.shape
        chunk = np.empty(chunk_spec.shape, np.float32)
        decode_chunk(memoryview(chunk_bytes.to_bytes()), (n_frames, n_atoms), chunk)
        return chunk_spec.prototype.nd_buffer.from_numpy_array(chunk)

    def _encode_sync(self, chunk_array: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        chunk = np.ascontiguousarray(chunk_array.as_numpy_array(), np.float32)
        if chunk.ndim != 3 or chunk.shape[2] != 3:
            raise ValueError(
                f"{QUANTISED_NAME} has chunks of (frames, atoms, 3), not {chunk.shape}"
            )
        return chunk_spec.prototype.buffer.from_bytes(encode_chunk(chunk, self._format))

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> NDBuffer:
        return self._decode_sync(chunk_data, chunk_spec)

    async def _encode_single(self, chunk_data: NDBuffer, chunk_spec: ArraySpec) -> Buffer:
        return self._encode_sync(chunk_data, chunk_spec)


@dataclass(frozen=True)
class XTCFrameCodec(BytesBytesCodec):
    """A frame of an XTC file, decoded to bytes of (atoms, 3) float32, little-endian, angstrom."""

    is_fixed_size = False

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:  # noqa: ARG003
        return cls()

    def to_dict(self) -> dict[str, Any]:
        return {"name": XTCFrame.codec_id}

    def get_config(self) -> dict[str, str]:
        return {"id": XTCFrame.codec_id}

    def compute_encoded_size(self, input_byte_length: int, chunk_spec: ArraySpec) -> int:
        """Raise NotImplementedError: the size depends on the numbers."""
        raise NotImplementedError

    async def _decode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer:
        positions = XTCFrame().decode(chunk_data.as_numpy_array())
        little_endian = positions.astype("<f4", copy=False)
        return chunk_spec.prototype.buffer.from_bytes(little_endian.tobytes())

    async def _encode_single(self, chunk_data: Buffer, chunk_spec: ArraySpec) -> Buffer | None:
        raise NotImplementedError("references are read only")
