"""Formats that MDAnalysis reads as a whole: what they may lack is told, or they are refused."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from MDAnalysisTests import datafiles

import mdio
from mdio.core.errors import MdioError, SourceError

COUNTED = ("CRD", "INPCRD", "NAMDBIN", "MMTF", "TRZ", "DMS", "GMS_ASYMOPT")
"""Formats of which a part cannot be taken for the whole."""
OPTIONS = {"TRZ": {"n_atoms": 8184}, "GMS_ASYMOPT": {"format": "GMS"}}


@pytest.mark.parametrize("name", COUNTED)
def test_parts_are_no_wholes(tmp_path, name):
    source = Path(getattr(datafiles, name))
    packed = source.suffix == ".gz"
    raw = gzip.decompress(source.read_bytes()) if packed else source.read_bytes()
    path = tmp_path / source.name.removesuffix(".gz")
    options = OPTIONS.get(name, {})
    path.write_bytes(raw)
    with mdio.open(path, **options) as layout:
        whole = layout.read(0, layout.info.n_frames)
        assert not layout.info.lost
    lines = [at + 1 for at, byte in enumerate(raw) if byte == ord("\n")] or [len(raw) // 2]
    cuts = np.random.default_rng(3).integers(1, len(raw) - 1, 20).tolist()
    for cut in sorted({*cuts, *lines[1 :: len(lines) // 20 + 1], len(raw) - 2}):
        path.write_bytes(raw[:cut])
        try:
            with mdio.open(path, **options) as layout:
                block = layout.read(0, layout.info.n_frames)
                n_frames, lost = layout.info.n_frames, layout.info.lost
        except MdioError as error:
            assert path.name in str(error)
            continue
        np.testing.assert_array_equal(block.positions, whole.positions[:n_frames])
        assert lost or n_frames == whole.n_frames, cut


@pytest.mark.parametrize(("name", "kind"), [("DLP_CONFIG", "CONFIG"), ("FHIAIMS", "IN")])
def test_formats_that_do_not_count_are_told(name, kind):
    with mdio.open(getattr(datafiles, name), format=kind) as layout:
        assert "it is unknown whether some are missing" in " ".join(layout.notes)


def test_a_last_number_that_may_be_cut_is_refused(tmp_path):
    raw = Path(datafiles.DLP_CONFIG).read_bytes().rstrip()
    path = tmp_path / "CONFIG"
    path.write_bytes(raw[:-3])
    with pytest.raises(SourceError, match="the last line does not end"):
        _ = mdio.open(path).info
    path.write_bytes(raw + b"\n")
    assert mdio.open(path).info.n_atoms == 216


@pytest.mark.parametrize("name", ["MMTF_gz"])
def test_models_that_would_be_one_frame_are_refused(name):
    with pytest.raises(SourceError, match="2 models, expected one"):
        _ = mdio.open(getattr(datafiles, name)).info
