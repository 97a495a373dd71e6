"""Two runs make one output at the same time: the copy of the second is removed by ``--resume``."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from MDAnalysisTests.datafiles import PSF

import mdio
from mdio.core.errors import OutputError
from mdio.core.files import publish


@pytest.mark.parametrize("out", ["a.zarr", "a.h5md"])
@pytest.mark.parametrize("same", [True, False])
def test_the_copy_of_the_second_run_goes(adk, tmp_path, monkeypatch, out, same):
    target, rename_into_place = tmp_path / out, publish.rename_into_place
    first = {} if same else {"select": "name CA", "top": PSF}

    def late(*args, **kwargs):
        monkeypatch.setattr(publish, "rename_into_place", rename_into_place)
        mdio.convert(adk["xtc"], target, **first)
        rename_into_place(*args, **kwargs)

    monkeypatch.setattr(publish, "rename_into_place", late)
    # As on another machine, where nobody knows whether the first run is alive.
    monkeypatch.setattr(publish, "refuse_second_run", lambda publication, target: None)
    with pytest.raises(OutputError, match=out):
        mdio.convert(adk["xtc"], target)
    copies = list(tmp_path.glob(f".{out}*.tmp"))
    assert len(copies) == 1  # the work of hours is not thrown away
    done = mdio.convert(adk["xtc"], target, resume=True, **first)
    assert done.found_complete
    assert list(tmp_path.glob(f".{out}*")) == [] if same else copies[0].exists()


OVERTAKEN = """
import sys, mdio
from mdio.core.files import publish

rename_into_place = publish.rename_into_place
words = sys.argv[1:]

def late(*args, **kwargs):
    publish.rename_into_place = rename_into_place
    mdio.convert(*words, force=True)
    rename_into_place(*args, **kwargs)

publish.rename_into_place = late
mdio.convert(*words, force=True)
"""


@pytest.mark.parametrize("out", ["a.zarr", "a.dcd"])
def test_of_three_that_replace_it_the_copies_of_two_stay(adk, tmp_path, monkeypatch, out):
    target, rename_into_place, told = tmp_path / out, publish.rename_into_place, []
    mdio.convert(adk["xtc"], target, stop=3)

    def late(*args, **kwargs):
        words = [sys.executable, "-c", OVERTAKEN, str(adk["xtc"]), str(target)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        told.append(done.stderr)
        rename_into_place(*args, **kwargs)

    monkeypatch.setattr(publish, "rename_into_place", late)
    with pytest.raises(OutputError) as caught:
        mdio.convert(adk["xtc"], target, force=True)
    told.append(str(caught.value))
    assert all("another run has changed it meanwhile" in text for text in told), told
    kept = {re.search(r"are kept in (\S+\.tmp)", text)[1] for text in told}
    assert len(kept) == 2 and all(Path(name).exists() for name in kept)
    assert mdio.open(target).info.n_frames == 98
    monkeypatch.setattr(publish, "rename_into_place", rename_into_place)
    mdio.convert(adk["xtc"], target, force=True, resume=True)
    assert [path.name for path in tmp_path.iterdir()] == [out]
