"""Blosc chunks of others that are cut, or whose headers are changed.

c-blosc reads beyond the end of such a chunk, so that what it gives depends on what lies there. What
mdio does not refuse has to be what c-blosc makes of the chunk whatever bytes lie behind it.
"""

import json

import numpy as np
import pytest
import zarr
from numcodecs import Blosc, blosc
from suites.zarr_cases import make_block
from test_zarr_foreign import NM, fill, make_zarr
from zarr.codecs import BloscCodec

from mdio.core.errors import SourceError
from mdio.layouts.zarr.layout import ZarrLayout

pytestmark = pytest.mark.filterwarnings("ignore:Combining a:zarr.errors.ZarrUserWarning")

N_FRAMES, N_ATOMS, CHUNK = 4, 200, 4 * 200 * 12
VALUE = "particles/trajectory/position/value"
KINDS = {
    "v2, blocks": (2, Blosc("lz4", 5, Blosc.SHUFFLE, blocksize=1024)),
    "v2, one block": (2, Blosc("zstd", 1, Blosc.BITSHUFFLE)),
    "v2, copied": (2, Blosc("lz4", 0)),
    "v3, blocks": (3, BloscCodec(typesize=4, cname="lz4", blocksize=1024)),
}
LZ4 = {
    "name": "blosc",
    "configuration": BloscCodec(typesize=4, cname="lz4").to_dict()["configuration"],
}
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
CRC32C, TRANSPOSE = {"name": "crc32c"}, {"name": "transpose", "configuration": {"order": [2, 1, 0]}}
TURN = {"name": "transpose", "configuration": {"order": [1, 0, 2]}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}


def sharded(*codecs, shape=(2, N_ATOMS, 3)):
    """Return a codec of shards with chunks of these codecs."""
    inner = {"chunk_shape": list(shape), "codecs": list(codecs), "index_location": "end"}
    inner["index_codecs"] = [BYTES, CRC32C]
    return {"name": "sharding_indexed", "configuration": inner}


READ = {
    "transposed": [TRANSPOSE, BYTES, LZ4],
    "below crc32c": [BYTES, LZ4, CRC32C],
    "in shards, below crc32c": [sharded(BYTES, LZ4, CRC32C)],
    "in transposed shards": [TURN, sharded(BYTES, LZ4, shape=(4, 4, 3))],
}
INSIDE = {
    "below gzip": [BYTES, LZ4, GZIP],
    "twice": [BYTES, LZ4, LZ4],
    "in shards, below gzip": [sharded(BYTES, LZ4, GZIP)],
    "over shards": [sharded(BYTES), LZ4],
    "in shards below crc32c": [sharded(BYTES, LZ4), CRC32C],
    "in shards of shards": [sharded(sharded(BYTES, LZ4))],
}


def make_nested(folder, codecs):
    """Return a tree, and the only file of its positions, which have these codecs."""
    tree, chunk = make_tree(folder, "v3, blocks")
    values = zarr.open_array(str(tree / VALUE), mode="r")[:]
    described = tree / VALUE / "zarr.json"
    node = json.loads(described.read_text())
    described.write_text(json.dumps({**node, "codecs": codecs}))
    chunk.unlink()
    zarr.open_array(str(tree / VALUE), mode="r+")[:] = values
    return tree, chunk, values


def make_tree(folder, kind, **options):
    """Return the tree and the file of its only chunk."""
    version, compressor = KINDS[kind]
    block = make_block(N_FRAMES, N_ATOMS)
    block.positions[...] = np.round(block.positions)  # so that there is something to compress
    opener, _ = make_zarr(version)

    def make(group, name, values):
        more = {"compressors": compressor, **options} if values.shape[1:] == (N_ATOMS, 3) else {}
        chunks = (2, *values.shape[1:]) if "shards" in more else values.shape
        return group.create_array(name, data=values, chunks=chunks, **more)

    fill(opener(folder / "x.zarr"), block, NM, make)
    chunk = folder / "x.zarr" / VALUE / ("0.0.0" if version == 2 else "c/0/0/0")
    return folder / "x.zarr", chunk


def by_c_blosc(data):
    """Return the numbers of a chunk, None if they depend on what lies behind it in memory."""
    out = [blosc.decompress(data + bytes([fill]) * 65536) for fill in (0, 255)]
    return np.frombuffer(out[0], "<f4") if out[0] == out[1] else None


def read(tree):
    return ZarrLayout(tree, convert_units=False).read(0, N_FRAMES).positions


def reader(tree):
    """Return what reads the chunk as it is each time: to open a tree takes far longer than that."""
    layout = ZarrLayout(tree, convert_units=False)
    return lambda: layout.read(0, N_FRAMES).positions


@pytest.mark.parametrize("kind", KINDS)
def test_cut_chunks_are_errors(tmp_path, kind):
    tree, chunk = make_tree(tmp_path, kind)
    whole, read_again = chunk.read_bytes(), reader(tree)
    assert np.array_equal(read_again().ravel(), by_c_blosc(whole))
    for kept in sorted({0, 1, 8, 15, 16, 17, 40, 64, *range(100, len(whole), 97), len(whole) - 1}):
        chunk.write_bytes(whole[:kept])
        with pytest.raises(SourceError, match=rf"{tree}: frames 0 to 3 .*{kept} bytes, expected"):
            read_again()
    chunk.write_bytes(whole + b"\0")
    with pytest.raises(SourceError, match=f"{len(whole) + 1} bytes, expected {len(whole)}"):
        read_again()


@pytest.mark.parametrize("kind", KINDS)
def test_changed_headers_are_errors_or_read_within_the_chunk(tmp_path, kind):
    tree, chunk = make_tree(tmp_path, kind)
    whole, read_again = chunk.read_bytes(), reader(tree)
    n_told = 0
    for place in range(32):  # the header, and the starts of the first blocks
        for bit in (0, 3, 7):
            changed = bytearray(whole)
            changed[place] ^= 1 << bit
            chunk.write_bytes(changed)
            try:
                found = read_again()
            except SourceError as error:
                assert str(tree) in str(error)
                n_told += 1
            else:
                expected = by_c_blosc(bytes(changed))
                assert expected is not None, (place, bit)
                assert np.array_equal(found.ravel(), expected, equal_nan=True), (place, bit)
    assert n_told >= 36  # the three lengths of the header


@pytest.mark.parametrize("place", ["cut", "header", "index"])
@pytest.mark.parametrize("frames", [(0, 2), (0, N_FRAMES)])
@pytest.mark.parametrize("at", ["start", "end"])
def test_chunks_within_shards(tmp_path, place, frames, at):
    shards = {"shape": (N_FRAMES, N_ATOMS, 3), "index_location": at}
    tree, shard = make_tree(tmp_path, "v3, blocks", shards=shards)
    whole = shard.read_bytes()
    layout = ZarrLayout(tree, convert_units=False)
    expected = zarr.open_array(str(tree / VALUE), mode="r")[slice(*frames)]
    assert np.array_equal(layout.read(*frames).positions, expected)
    index = whole[:32] if at == "start" else whole[-36:-4]
    begin, nbytes = np.frombuffer(index, "<u8")[:2].tolist()
    assert len(by_c_blosc(whole[begin : begin + nbytes])) == 2 * N_ATOMS * 3
    changed = bytearray(whole)
    if place == "cut":
        changed = changed[: begin + nbytes // 2] if at == "start" else changed[nbytes // 2 :]
    elif place == "header":
        changed[begin + 13] ^= 1
    else:
        changed[0 if at == "start" else len(whole) - 36] ^= 1
    shard.write_bytes(changed)
    with pytest.raises(SourceError, match=str(tree)) as raised:
        ZarrLayout(tree, convert_units=False).read(*frames)
    if place == "header":
        assert f"a chunk of {nbytes} bytes, expected" in str(raised.value)


@pytest.mark.parametrize("codecs", READ.values(), ids=READ)
def test_below_other_codecs(tmp_path, codecs):
    tree, chunk, values = make_nested(tmp_path, codecs)
    whole, read_again = chunk.read_bytes(), reader(tree)
    assert np.array_equal(read_again(), values)
    for kept in (0, 5, 20, len(whole) // 2, len(whole) - 5, len(whole) - 1):
        chunk.write_bytes(whole[:kept])
        with pytest.raises(SourceError, match=str(tree)):
            read_again()
    changed = bytearray(whole)
    changed[13] ^= 1  # a chunk of Blosc lies first in all of these
    chunk.write_bytes(changed)
    with pytest.raises(SourceError, match=rf"{tree}.*(bytes, expected|checksum do not match)"):
        read_again()


@pytest.mark.parametrize("codecs", INSIDE.values(), ids=INSIDE)
def test_inside_other_codecs(tmp_path, codecs):
    tree, chunk, values = make_nested(tmp_path, codecs)
    whole, read_again = chunk.read_bytes(), reader(tree)
    assert np.array_equal(read_again(), values)
    for kept in (0, 5, 20, len(whole) // 2, len(whole) - 5, len(whole) - 1):
        chunk.write_bytes(whole[:kept])
        with pytest.raises(SourceError, match=str(tree)):
            read_again()


def test_as_a_filter_of_v2(tmp_path):
    tree, chunk = make_tree(tmp_path, "v2, blocks")
    described = tree / VALUE / ".zarray"
    node = json.loads(described.read_text())
    described.write_text(json.dumps({**node, "filters": [node["compressor"]]}))
    with pytest.raises(SourceError, match="cannot be read"):  # its chunk is compressed once
        read(tree)
    described.write_text(json.dumps({**node, "filters": [node["compressor"]], "compressor": None}))
    assert len(read(tree)) == N_FRAMES
    chunk.write_bytes(chunk.read_bytes()[:-100])
    with pytest.raises(SourceError, match=rf"{tree}.* \d+ bytes, expected"):
        read(tree)
