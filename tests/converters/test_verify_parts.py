"""Large outputs are verified in parts and by samples: by number, the same ones every time."""

import json
import shutil

import pytest
from suites.per_rank import convert

import mdio
from mdio.cli.main import main
from mdio.converters.verify import every_nth, sample

KINDS = {
    "a.zarr": {"chunk_frames": 7, "chunk_atoms": 1000},
    "a.h5md": {"chunk_frames": 7},
    "parts.h5md": {"chunk_frames": 7, "per_rank": True, "workers": 2},
    "a.segments": {"segments": 9},
}


@pytest.fixture(scope="module", params=KINDS)
def out(adk, tmp_path_factory, request):
    path = tmp_path_factory.mktemp("out") / request.param
    convert(adk["dcd"], path, **KINDS[request.param])
    return path


def names(out, wanted=lambda _: True):
    with mdio.open(out) as layout:
        return [name for name, problem in layout.check(wanted) if problem is None]


def test_parts_are_all_together_and_samples_are_spread(out):
    every = names(out)
    assert len(every) > 8
    parts = [names(out, every_nth(k, 4)) for k in (1, 2, 3, 4)]
    assert sorted(name for part in parts for name in part) == sorted(every)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert names(out, sample(1.0)) == every
    some = names(out, sample(0.25))
    assert some[0] == every[0] and abs(len(some) - len(every) / 4) < 1


def test_the_part_with_the_damage_finds_it(adk, out, tmp_path, capsys):
    mine = tmp_path / out.name
    for path in out.parent.iterdir():
        copy = shutil.copytree if path.is_dir() else shutil.copy
        copy(path, tmp_path / path.name)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".json"]
    victim = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 4
    victim.write_bytes(data)
    codes, found = [], []
    for k in range(1, 4):
        codes.append(main(["verify", str(mine), "--part", f"{k}/3", "--json"]))
        found.append(json.loads(capsys.readouterr().out))
    assert sum(codes) >= 1 and [bool(code) for code in codes] == [not one["ok"] for one in found]
    assert sum(one["chunks_checked"] for one in found) == found[0]["units"]
    assert main(["verify", str(mine), "--deep"]) == 1


def test_frames_are_compared_in_parts_too(adk, out, capsys, monkeypatch):
    monkeypatch.setattr("mdio.converters.verify.BLOCK_NBYTES", 10 * 12 * 3341)
    compared = 0
    for k in range(1, 4):
        words = ["verify", str(out), "--against", str(adk["dcd"]), "--part", f"{k}/3", "--json"]
        assert main(words) == 0
        compared += json.loads(capsys.readouterr().out)["frames_compared"]
    assert compared == 98


def test_the_summary_tells_how_many(out, capsys):
    assert main(["verify", str(out), "--sample", "10%"]) == 0
    n_units = len(names(out))
    assert f" of {n_units:,} chunks checked" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["--part 0/3", "--part 4/3", "--sample 0%", "--sample 3"])
def test_what_is_no_part(out, words, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(out), *words.split()])
    assert ended.value.code == 2 and "write" in capsys.readouterr().err
