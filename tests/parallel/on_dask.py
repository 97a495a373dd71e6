"""A Dask cluster of processes for tests, whose workers find what tests define."""

from pathlib import Path

import pytest


def _find(folder):
    import sys

    sys.path.insert(0, folder)


def dask_client(**more):
    """Return a client of two workers, each a process that may die and come again."""
    distributed = pytest.importorskip("distributed")
    one = {"threads_per_worker": 1, "dashboard_address": ":0", "silence_logs": 50}
    client = distributed.Client(**{"n_workers": 2, "memory_limit": 0, **one, **more})
    client.run(_find, str(Path(__file__).parents[1]))
    return client
