"""Files that are cut or damaged at random: all frames that nothing happened to are recovered.

``MDIO_SALVAGES=2000 pytest tests/trust/test_salvage.py`` tries more of them, and `salvage.py` many.
"""

import os

import numpy as np
import pytest
from salvage import FIRST_HEADER, N_FRAMES, SOURCES, damage, is_in, make_sources, write_and_die

import mdio
from mdio.cli.main import main

N_FILES = int(os.environ.get("MDIO_SALVAGES", "24"))


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return make_sources(tmp_path_factory.mktemp("sources"))


@pytest.mark.parametrize("kind", SOURCES)
def test_all_whole_frames_are_recovered(sources, tmp_path, kind, capsys):
    raw, edges, frames = sources[kind]
    for seed in range(N_FILES // 4):
        data, whole = damage(raw, edges, FIRST_HEADER[kind], np.random.default_rng(seed))
        if not whole:
            continue
        path, out = tmp_path / f"{seed}.{kind}", tmp_path / f"{seed}.zarr"
        path.write_bytes(data)
        code = main(["convert", str(path), str(out), "--salvage"])
        said = capsys.readouterr()
        assert code == 0, (seed, said.err)
        with mdio.open(out) as layout:
            found = layout.read(0, layout.info.n_frames).positions
            source = layout.manifest["source"]
        assert is_in(frames[whole], found), (seed, len(whole), len(found))
        assert main(["verify", str(out), "--against", str(path), "--quiet"]) == 0, seed
        lost = N_FRAMES - len(found)
        if lost > 0:
            assert "lost" in source or "unreadable_frames" in source, seed
            assert "whole frame" in said.out, seed
            assert main(["verify", str(path)]) == 1
            assert main(["convert", str(path), str(tmp_path / "no.zarr")]) == 1
            err = capsys.readouterr().err
            assert "--salvage" in err, (seed, err)
        capsys.readouterr()


def test_all_flushed_frames_of_a_file_that_was_not_closed_are_recovered(sources, tmp_path, capsys):
    frames = sources["xtc"][2]
    for seed in range(N_FILES // 4):
        random = np.random.default_rng(seed)
        n_flushed = int(random.integers(1, N_FRAMES + 1))
        n_frames = int(random.integers(n_flushed, N_FRAMES + 1))
        path, out = tmp_path / f"{seed}.h5md", tmp_path / f"{seed}.zarr"
        write_and_die(path, frames[:n_frames], n_flushed)
        assert main(["convert", str(path), str(out), "--salvage", "--quiet"]) == 0, seed
        with mdio.open(out) as layout:
            found = layout.read(0, layout.info.n_frames).positions
        assert found[:n_flushed].tobytes() == frames[:n_flushed].tobytes(), seed
        assert main(["verify", str(out), "--against", str(path), "--quiet"]) == 0, seed
        capsys.readouterr()
