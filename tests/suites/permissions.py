"""A folder of a user whom permissions bind, for tests that may be run by root."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534


@contextmanager
def folder_of_ordinary_user() -> Iterator[Path]:
    """Make a folder and run the block as its owner, who is never root.

    It does not lie in pytest's own folders, which let no other user in.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if os.geteuid() != 0:
            yield folder
            return
        try:
            os.chown(folder, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, 0)
        except OSError:  # in a user namespace without other users
            pytest.skip("root can be nobody else here")
        try:
            yield folder
        finally:
            os.setresuid(0, 0, 0)
