"""A codec of floats in a package of its own: one class, found by an entry point."""

import lzma
import re
import warnings

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from suites.plug_ins import install_plug_ins

import mdio
from mdio.core.errors import CorruptLayoutError, MdioError, OutputError, PlanError
from mdio.layouts.codecs import compressors
from mdio.layouts.codecs.compressors import Compressor


class Lzma(Compressor):
    """LZMA."""

    codec = "example.lzma"
    levels = (0, 9, 1)

    def encode(self, data):
        return lzma.compress(data, preset=self.level)

    def decode(self, data, out):
        try:
            out[...] = np.frombuffer(lzma.decompress(data), np.uint8)
        except lzma.LZMAError as error:
            raise ValueError(str(error)) from error


class Forgetful(Lzma):
    """Loses the last byte."""

    def decode(self, data, out):
        super().decode(data, out)
        out[-1] = 0


class Lazy(Lzma):
    """Decodes nothing."""

    def decode(self, data, out):
        pass


class Failing(Lzma):
    def decode(self, data, out):
        raise KeyError("no decoder")


class Nameless(Lzma):
    codec = None


class Ranged(Lzma):
    levels = range(10)


class Half(Compressor):
    codec = "example.half"
    encode = Lzma.encode


class NoCodec:
    """Something else."""


@pytest.fixture
def installed(monkeypatch):
    def install(**classes):
        install_plug_ins(monkeypatch, "mdio.codecs", classes)
        compressors._plug_ins.cache_clear()

    yield install
    compressors._plug_ins.cache_clear()


def test_it_is_written_read_added_to_and_verified(installed, adk, tmp_path):
    installed(lzma=Lzma)
    out = tmp_path / "a.zarr"
    made = mdio.convert(adk["dcd"], out, compression="lzma:2", stop=5)
    assert made.plan.compression == "lzma:2"
    mdio.append(adk["dcd"], out)
    assert mdio.verify(out, against=adk["dcd"]).ok
    with mdio.open(out) as output, mdio.open(adk["dcd"]) as source:
        assert output.info.compression == "lzma:2"
        assert_array_equal(output.read(0, 98).positions, source.read(0, 98).positions)
    with pytest.raises(PlanError, match="level of lzma must be 0 to 9"):
        mdio.convert(adk["dcd"], out, compression="lzma:10", force=True)
    with pytest.raises(PlanError, match=r"did you mean 'lzma'.*lzma\[:LEVEL\]"):
        mdio.convert(adk["dcd"], out, compression="lzmaa", force=True)


@pytest.mark.parametrize(
    ("codec", "problem"), [(Forgetful, "other bytes"), (Lazy, "other bytes"), (Failing, "decoder")]
)
def test_one_that_does_not_give_back_what_it_got(installed, adk, tmp_path, codec, problem):
    installed(lzma=Lzma)
    out = tmp_path / "a.zarr"
    mdio.convert(adk["dcd"], out, compression="lzma", stop=5)
    whole = mdio.open(out).read(0, 5).positions
    installed(lzma=codec)
    with pytest.raises(OutputError, match=rf"'example.lzma' does not give back .*{problem}"):
        mdio.convert(adk["dcd"], out, compression="lzma", stop=5, force=True)
    if codec is Forgetful:
        with pytest.raises(CorruptLayoutError, match="not what was written there"):
            mdio.open(out).read(0, 5)
    installed(lzma=Lzma)
    assert_array_equal(mdio.open(out).read(0, 5).positions, whole)


def test_without_it_the_tree_names_what_is_missing(installed, adk, tmp_path):
    installed(lzma=Lzma)
    mdio.convert(adk["dcd"], tmp_path / "a.zarr", compression="lzma", stop=5)
    installed()
    with pytest.raises(MdioError, match=r"a\.zarr.*example\.lzma"):
        mdio.open(tmp_path / "a.zarr").read(0, 1)


def test_what_is_none_is_left_out_with_a_warning(installed, adk, tmp_path):
    unfinished = {"nameless": Nameless, "ranged": Ranged, "half": Half}
    installed(zstd=Lzma, other=NoCodec, lzma=Lzma, **unfinished)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        mdio.convert(adk["dcd"], tmp_path / "a.zarr", compression="lzma", stop=2)
    words = [str(one.message) for one in found if "left out" in str(one.message)]
    assert len(words) == 5
    assert "'zstd'" in words[0] and "the name is taken" in words[0]
    assert "'other'" in words[1] and "not a subclass" in words[1]
    reasons = ("codec is None; give its name", "levels is range.0, 10.; give", "no method decode")
    for word, reason in zip(words[2:], reasons, strict=True):
        assert re.search(f"left out: .*{reason}", word)
