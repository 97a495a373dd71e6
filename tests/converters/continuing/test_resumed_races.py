"""Two runs make one output at the same time: the copy of the second is removed by ``--resume``."""

import pytest
from MDAnalysisTests.datafiles import PSF

import mdio
from mdio.core.errors import OutputError
from mdio.core.files import publish


@pytest.mark.parametrize("out", ["a.zarr", "a.h5md"])
@pytest.mark.parametrize("same", [True, False])
def test_the_copy_of_the_second_run_goes(adk, tmp_path, monkeypatch, out, same):
    goal, put_in_place = tmp_path / out, publish.put_in_place
    first = {} if same else {"select": "name CA", "top": PSF}

    def late(*args, **kwargs):
        monkeypatch.setattr(publish, "put_in_place", put_in_place)
        mdio.convert(adk["xtc"], goal, **first)
        put_in_place(*args, **kwargs)

    monkeypatch.setattr(publish, "put_in_place", late)
    # As on another machine, where nobody knows whether the first run is alive.
    monkeypatch.setattr(publish, "refuse_second_run", lambda claim, goal: None)
    with pytest.raises(OutputError, match=out):
        mdio.convert(adk["xtc"], goal)
    copies = list(tmp_path.glob(f".{out}*.tmp"))
    assert len(copies) == 1  # the work of hours is not thrown away
    done = mdio.convert(adk["xtc"], goal, resume=True, **first)
    assert done.found_complete
    assert list(tmp_path.glob(f".{out}*")) == [] if same else copies[0].exists()
