"""Readers are made known to MDAnalysis when it is imported, whatever was asked about it before."""

import subprocess
import sys

import pytest

REGISTERED = "; import MDAnalysis, sys; print('MDIOZ' in MDAnalysis._READERS, end='')"


def _printed(code):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], check=True, capture_output=True, text=True
    ).stdout


@pytest.mark.parametrize(
    "before",
    [
        "import mdio",
        "import mdio; from importlib.util import find_spec; assert find_spec('MDAnalysis')",
        "import MDAnalysis, mdio",
    ],
)
def test_asking_whether_it_is_installed_leaves_the_readers(before):
    assert _printed(before + REGISTERED) == "True"


def test_what_asks_gets_the_loader_that_would_load():
    code = (
        "import mdio; from importlib.util import find_spec; spec = find_spec('MDAnalysis'); "
        "print(spec.loader.get_filename('MDAnalysis') == spec.origin, end='')"
    )
    assert _printed(code) == "True"


def test_an_import_that_fails_may_be_tried_again(tmp_path):
    (tmp_path / "MDAnalysis.py").write_text("raise ImportError('half installed')")
    code = f"""
import sys
import mdio
sys.path.insert(0, {str(tmp_path)!r})
try:
    import MDAnalysis
except ImportError:
    sys.path.remove({str(tmp_path)!r})
import MDAnalysis
left = [finder for finder in sys.meta_path if 'mdio.core' in str(finder)]
print('MDIOZ' in MDAnalysis._READERS, len(left), end='')
"""
    assert _printed(code) == "True 0"


def test_the_action_runs_once_and_nothing_stays(tmp_path, monkeypatch):
    from mdio.core.when_imported import when_imported

    (tmp_path / "thing_to_import.py").write_text("x = 1")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    calls = []
    when_imported("thing_to_import", lambda: calls.append("first"))
    when_imported("thing_to_import", lambda: calls.append("second"))
    import thing_to_import

    assert thing_to_import.__spec__.loader is thing_to_import.__loader__
    assert sorted(calls) == ["first", "second"]
    assert sys.meta_path == before
    monkeypatch.delitem(sys.modules, "thing_to_import")
