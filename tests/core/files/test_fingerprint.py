"""What tells one source from another."""

import numpy as np
import pytest

from mdio.core.errors import SourceError
from mdio.core.files.fingerprint import fingerprint, read_head
from mdio.core.files.reading import reads


def test_fingerprints_tell_files_apart(tmp_path):
    import google_crc32c

    raw = np.random.default_rng(0).bytes(300_000)
    path, copy, other = (tmp_path / name for name in ("a", "b", "c"))
    path.write_bytes(raw)
    copy.write_bytes(raw)
    other.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    print_of = fingerprint(path)
    assert print_of == {
        "path": str(path),
        "nbytes": 300_000,
        "mtime_ns": path.stat().st_mtime_ns,
        "crc32c_head": google_crc32c.value(raw[:65536]),
        "crc32c_tail": google_crc32c.value(raw[-65536:]),
    }
    names = ("nbytes", "crc32c_head", "crc32c_tail")
    assert [fingerprint(copy)[name] for name in names] == [print_of[name] for name in names]
    assert [name for name in names if fingerprint(other)[name] != print_of[name]] == ["crc32c_tail"]


def test_fingerprints_of_folders_are_those_of_their_manifests(tmp_path):
    folder = tmp_path / "a.zarr"
    folder.mkdir()
    with pytest.raises(SourceError, match="without a manifest"):
        fingerprint(folder)
    (folder / "zarr.json").write_text("{}")
    first = fingerprint(folder)
    assert (first["path"], first["nbytes"]) == (str(folder), 2)
    (folder / "zarr.json").write_text("[]")
    assert fingerprint(folder)["crc32c_head"] != first["crc32c_head"]
    with pytest.raises(SourceError, match="none: cannot be read"):
        fingerprint(tmp_path / "none")


def test_a_look_at_what_a_file_is_counts_as_no_read(tmp_path):
    (tmp_path / "a").write_bytes(bytes(300))
    before = reads.nbytes_source
    assert read_head(tmp_path / "a") == bytes(64)
    assert reads.nbytes_source == before
