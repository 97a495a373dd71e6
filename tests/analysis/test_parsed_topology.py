"""A topology file is parsed once: what was parsed lies beside it, for as long as it is the same."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from MDAnalysisTests.datafiles import DCD, GRO, PRM, PSF, TPR, XTC, PDB_small

import mdio
from mdio.converters import selection
from mdio.core.errors import SourceError
from mdio.core.files import index
from mdio.core.topology import Texts
from mdio.layouts.foreign.parsed import ENDING, identity_of, parsed_topology, store_parsed
from mdio.layouts.foreign.universe import topology_of


@pytest.fixture
def psf(tmp_path):
    return shutil.copy(PSF, tmp_path / "adk.psf")


@pytest.fixture
def parses(monkeypatch):
    """What MDAnalysis is asked to parse."""
    asked, parse = [], selection._read_topology

    def noted(top):
        asked.append(top)
        return parse(top)

    monkeypatch.setattr(selection, "_read_topology", noted)
    return asked


def run(psf, **more):
    return mdio.analyze(DCD, top=psf, kernel="rmsd", **({"select": "name CA"} | more))


def beside(path):
    return path.with_name(f".{path.name}{ENDING}")


def test_it_is_parsed_once(psf, parses):
    first, second = run(psf), run(psf)
    assert parses == [psf]
    np.testing.assert_array_equal(first.values, second.values)
    assert first.notes == second.notes
    other = shutil.copy(psf, psf.with_name("b.psf"))
    fluctuations = [
        mdio.analyze(DCD, top=top, kernel="rmsf", select="resid 1:3") for top in (psf, other)
    ]
    assert parses == [psf, other]
    assert fluctuations[0].row_labels == fluctuations[1].row_labels
    assert fluctuations[0].row_labels[0].endswith("4AKE:MET1:N")


def test_what_only_mdanalysis_understands_is_asked_of_it(psf, parses):
    for _ in range(2):
        run(psf, select="name CA and around 8 resid 10")
    assert parses == [psf, psf]
    assert beside(psf).exists()


def test_all_atoms_need_no_topology(psf, parses):
    run(psf)
    notes = [run(psf, select="all").notes for _ in range(2)]
    assert notes[0] == notes[1]
    assert any("not read" in note for note in notes[0])
    assert parses == [psf]


@pytest.mark.parametrize("change", ["content", "damage", "cut", "parser", "other"])
def test_it_is_parsed_anew(psf, parses, monkeypatch, change):
    run(psf)
    kept, select = beside(psf), "name CA"
    if change == "content":  # of the same size
        text = psf.read_text().replace(" CA ", " CX ")
        psf.write_text(text)
        select = "name CX"
    elif change == "damage":
        data = bytearray(kept.read_bytes())
        data[len(data) // 2] ^= 1
        kept.write_bytes(data)
    elif change == "cut":
        kept.write_bytes(kept.read_bytes()[:30])
    elif change == "parser":
        monkeypatch.setattr("mdio.layouts.foreign.parsed._parser_crc", lambda: 1)
    else:
        shutil.copy(psf, psf.with_name("b.psf"))
        kept.rename(beside(psf.with_name("b.psf")))
        os.utime(psf.with_name("b.psf"), ns=(1, 1))
        psf = psf.with_name("b.psf")
    assert run(psf, select=select).n_frames == 98
    assert parses == [psf.with_name("adk.psf"), psf]
    run(psf, select=select)
    assert len(parses) == 2


def test_a_file_that_is_replaced_while_it_is_parsed(psf, monkeypatch):
    parse = selection._read_topology

    def replaced(top):
        universe = parse(top)
        psf.write_text(psf.read_text().replace(" CA ", " CX "))
        return universe

    with monkeypatch.context() as patched:
        patched.setattr(selection, "_read_topology", replaced)
        run(psf)
    assert run(psf, select="name CX").n_frames == 98


def test_a_stored_group_leaves_what_is_kept_alone(psf, tmp_path, parses):
    out = tmp_path / "a.zarr"
    mdio.convert(DCD, out, top=psf, groups={"ca": "name CA"})
    parses.clear()
    for _ in range(2):
        assert run(psf, select="name CA").n_frames == 98
        result = mdio.analyze(out, top=psf, group="ca", kernel="rmsd", select="name CA")
        assert result.n_frames == 98
    assert parses == [psf] * 3  # the group's atoms are numbered by the file
    changed_ns = beside(psf).stat().st_mtime_ns
    mdio.analyze(out, top=psf, group="ca", kernel="rmsd", select="name CA")
    assert beside(psf).stat().st_mtime_ns == changed_ns


def test_a_file_of_a_newer_program_is_an_error(tmp_path):
    data = bytearray(Path(TPR).read_bytes())
    at = data.index(b"VERSION 4.0") + 16  # behind the text: bytes of a real, the file's version
    data[at : at + 4] = (300).to_bytes(4, "big")
    path = tmp_path / "new.tpr"
    path.write_bytes(data)
    with pytest.raises(
        SourceError, match=r"new.tpr: cannot be read as a topology .*version is 300"
    ):
        mdio.analyze(XTC, top=path, kernel="rmsd", select="name CA")
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("nbytes", [200, 100_000])
def test_a_file_that_is_cut_is_an_error(tmp_path, nbytes):
    path = tmp_path / "cut.tpr"
    path.write_bytes(Path(TPR).read_bytes()[:nbytes])
    with pytest.raises(SourceError, match=r"cut.tpr: cannot be read .*\(it is truncated: copy it"):
        mdio.analyze(XTC, top=path, kernel="rmsd", select="name CA")


def test_it_has_to_fit(psf, parses):
    run(psf)
    for _ in range(2):
        with pytest.raises(SourceError, match=r"47681 atoms, but the topology .*adk.psf has 3341"):
            mdio.analyze(XTC, top=psf, kernel="rmsd", select="name CA")
    assert parses == [psf] * 3


def test_in_a_folder_of_others_it_lies_in_the_cache_folder(psf, parses, monkeypatch):
    def refusing(where, data, **more):
        if where.parent == psf.parent:
            raise PermissionError(13, "Permission denied", str(where))
        return whole(where, data, **more)

    whole = index.write_atomically
    monkeypatch.setattr(index, "write_atomically", refusing)
    run(psf)
    run(psf)
    assert parses == [psf]
    assert not beside(psf).exists()


@pytest.mark.parametrize("top", [PSF, TPR, PRM, GRO, PDB_small])
def test_it_is_what_mdanalysis_parses(tmp_path, top):
    path = shutil.copy(top, tmp_path / Path(top).name)
    parsed = topology_of(selection._read_topology(path))
    store_parsed(path, identity_of(path), parsed)
    stored = parsed_topology(path)
    assert stored.n_atoms == parsed.n_atoms
    assert stored.classes == parsed.classes
    assert list(stored.columns) == list(parsed.columns)
    for name, column in parsed.columns.items():
        of_stored = stored.columns[name]
        if isinstance(column, Texts):
            assert list(of_stored.values()) == list(column.values())
        else:
            np.testing.assert_array_equal(of_stored, column)
