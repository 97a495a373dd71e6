"""What went aside comes back, also where the disk was copied and files have other numbers."""

import shutil

import pytest

from mdio.core.files import replacing
from mdio.core.files.checks import is_identical, read_identity
from mdio.core.files.publish import publish


def test_files_are_known_by_their_bytes_and_folders_by_their_number(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    one.write_bytes(b"bytes")
    shutil.copyfile(one, other)
    assert is_identical(other, read_identity(one)) and is_identical(one, one.lstat().st_ino)
    other.write_bytes(b"bytez")
    assert not is_identical(other, read_identity(one))
    assert not is_identical(tmp_path / "none", read_identity(one))
    assert not is_identical(one, read_identity(tmp_path))


@pytest.mark.parametrize("n_renames", range(4))
def test_the_former_topology_comes_back_with_its_output(tmp_path, monkeypatch, n_renames):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    (here / "a.h5md").write_bytes(b"old")
    (here / "a.pdb").write_bytes(b"old topology")
    rename, left = replacing.rename, [n_renames]

    def stopped(*words):
        if not left[0] and not there.exists():
            shutil.copytree(here, there)  # as the disk is when the power goes
        left[0] -= 1
        rename(*words)

    monkeypatch.setattr(replacing, "rename", stopped)
    with publish(here / "a.h5md", force=True, companions=[here / "a.pdb"]) as temporary:
        temporary.write_bytes(b"new")
        replacing_name = temporary.with_name(temporary.name.replace("a.h5md", "a.pdb"))
        replacing_name.write_bytes(b"new topology")
    monkeypatch.undo()
    replacing.clean_up([there / "a.h5md"])
    assert (there / "a.h5md").read_bytes() == b"old"
    assert (there / "a.pdb").read_bytes() == b"old topology"
    # Whose turn it was is this process, which lives: nobody but it takes that away.
    assert {path.name for path in there.iterdir()} - {".a.h5md.mdio-turn"} == {"a.h5md", "a.pdb"}
