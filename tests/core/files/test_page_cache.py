"""Whether a file has left the page cache is seen, not assumed."""

import os

from mdio.core.files.page_cache import drop_cache
from mdio.core.files.store import file_system_type


def test_what_stays_is_told(tmp_path, monkeypatch):
    file = tmp_path / "sub" / "a"
    file.parent.mkdir()
    file.write_bytes(os.urandom(1 << 20))
    if file_system_type(file) != "tmpfs":  # which has nowhere to drop it to
        assert drop_cache(tmp_path) is None
        monkeypatch.setattr(os, "posix_fadvise", lambda *args: None)  # a system that keeps all
        assert drop_cache(tmp_path) is None  # looking has not brought it back
    file.read_bytes()
    assert "100% of its bytes stayed" in drop_cache(tmp_path)


def test_odd_files(tmp_path):
    (tmp_path / "empty").touch()
    assert drop_cache(tmp_path) is None
    assert "none: No such file" in drop_cache(tmp_path / "none")
