"""Numbers of each frame beside its atoms, as manifests hold them: of replica exchange, say."""

from __future__ import annotations

import binascii
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.core.errors import CorruptLayoutError

FrameData = dict[str, NDArray[Any]]
"""By name, (F,) or (F, k): integers or floats of each frame."""
MOST_COLUMNS = 64


def to_json(data: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Return it as JSON-able values: little-endian numbers, compressed by zlib, in base64."""
    found = {}
    for name, values in data.items():
        little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        packed = b64encode(zlib.compress(little.tobytes())).decode()
        found[name] = {"dtype": little.dtype.str, "shape": list(values.shape), "zlib": packed}
    return found


def from_json(said: Any, n_frames: int, path: Any) -> FrameData:
    """Return what `to_json` made values of; raises CorruptLayoutError."""
    try:
        return {str(name): _array(one, n_frames) for name, one in dict(said or {}).items()}
    except (TypeError, KeyError, ValueError, binascii.Error, zlib.error) as error:
        raise CorruptLayoutError(
            f"{path}: its manifest has numbers of frames that cannot be read "
            f"({' '.join(str(error).split())}); convert the source again"
        ) from error


def _array(said: Mapping[str, Any], n_frames: int) -> NDArray[Any]:
    dtype, shape = np.dtype(said["dtype"]), tuple(map(int, said["shape"]))
    n_columns = int(np.prod(shape[1:], dtype=np.int64))
    if dtype.kind not in "fiu" or shape[:1] != (n_frames,) or not 0 < n_columns <= MOST_COLUMNS:
        raise ValueError(f"{dtype} of shape {shape} for {n_frames} frames")
    nbytes = dtype.itemsize * n_frames * n_columns
    raw = zlib.decompressobj().decompress(b64decode(said["zlib"]), nbytes)
    return np.frombuffer(raw, dtype).reshape(shape)


def joined(parts: Sequence[FrameData]) -> FrameData:
    """Return what all parts have of one after the other, in the same shape."""
    if not parts:
        return {}
    first, *others = parts
    names = [
        name
        for name, values in first.items()
        if all(name in one and one[name].shape[1:] == values.shape[1:] for one in others)
    ]
    return {name: np.concatenate([one[name] for one in parts]) for name in names}


def described(data: Mapping[str, NDArray[Any]]) -> str:
    """Return in words what there is, with the least and most of each."""
    spans = ((name, values.min(), values.max()) for name, values in data.items())
    return ", ".join(
        f"{name} {low:g}" + ("" if low == high else f" to {high:g}") for name, low, high in spans
    )
