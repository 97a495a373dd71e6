"""File systems of which no stripes can be asked: what they do instead is told, by their type."""

import json

import pytest

import mdio
from mdio.cli.main import main
from mdio.core.files import store
from mdio.layouts.striping import file_systems

MOUNTS = """22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
90 22 0:50 / {folder}/shared\\040data rw,nosuid master:3 - {type} server:/export rw,addr=10.0.0.1
91 90 0:51 / {folder}/shared\\040data/local rw - xfs /dev/vdb rw
"""
TELLS = {
    "nfs": "NFS does not tell",
    "nfs4": "NFS does not tell",
    "fuse.mfs": "MooseFS keeps every 64 MiB of a file whole on one server",
    "fuse.moosefs": "MooseFS keeps every 64 MiB",
    "cifs": "SMB does not tell",
    "smb3": "SMB does not tell",
    "fuse.sshfs": "sshfs reads all files from one server",
    "fuse.glusterfs": "GlusterFS keeps each file whole",
}


@pytest.fixture(params=TELLS)
def shared(request, adk, tmp_path, monkeypatch):
    """A folder that a table of mounts says is on such a file system; and what is told of it."""
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS.format(folder=tmp_path.resolve(), type=request.param))

    def look(path):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "MOUNTS", str(table))
            return store.file_system_type(path)

    monkeypatch.setattr(file_systems, "file_system_type", look)
    (folder := tmp_path / "shared data").mkdir()
    (folder / "local").mkdir()
    mdio.convert(adk["dcd"], folder / "a.dcd", stop=3)
    return folder, TELLS[request.param]


def test_info_and_plan_tell(adk, shared, capsys):
    folder, told = shared
    assert main(["info", str(folder / "a.dcd")]) == 0
    assert told in capsys.readouterr().out
    assert main(["info", str(folder / "a.dcd"), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["striping"] is None and facts["no_striping"].startswith(told)
    for out, here in ((folder / "b.h5md", True), (folder / "local" / "b.h5md", False)):
        assert main(["convert", str(adk["dcd"]), str(out), "--dry-run"]) == 0
        assert (f"note: {told}" in capsys.readouterr().out) == here


def test_what_was_asked_for_is_not_applied_and_says_why(adk, shared):
    folder, told = shared
    mdio.convert(
        adk["dcd"],
        folder / "b.zarr",
        stop=3,
        storage=mdio.Storage(stripe_nbytes=1 << 20, stripe_count=4),
    )
    with mdio.open(folder / "b.zarr") as layout:
        stripe = layout.manifest["stripe"]
    assert stripe["applied"] is None and stripe["reason"].startswith(told)
    assert stripe["asked"] == {"stripe_nbytes": 1 << 20, "stripe_count": 4}
