"""What lies beside an output is obeyed only if this user's own work has put it there."""

import json
import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from test_publish import dead_pid

import mdio
from mdio.converters.strategies import conversion
from mdio.core.errors import OutputError
from mdio.core.files import locks
from mdio.core.files.checks import read_identity
from mdio.core.files.journal import (
    MAGIC,
    Journal,
    Record,
    find_unfinished,
    journal_path,
    read_journal,
)
from mdio.core.files.publish import publish
from mdio.core.files.replacing import clean_up

HERE = locks.host_name()
ANOTHER = 65534
"""Another user, as whom tests can only act if they are root."""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def lock_file(out: Path, owner: str = f"not{HERE[:9]}-1-deadbeef", **plan: object) -> Path:
    """Write the lock and the journal of a run that is long gone."""
    whole = {"goal": out.name, "aside": [], "new": {out.name: read_identity(out)}}
    lock = out.with_name(f".{out.name}.mdio-{owner}.lock")
    lock.write_text(json.dumps(whole | plan) + "\n")
    journal = lock.with_suffix(".journal")
    journal.touch()
    os.utime(journal, (1, 1))
    return lock


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "shared"
    folder.mkdir()
    for precious in (tmp_path / "precious", folder / "precious"):
        precious.mkdir()
        (precious / "thesis.txt").write_text("years of work")
    (folder / "thesis.txt").write_text("years of work")
    (folder / "a.h5md").write_text("an output")
    return folder / "a.h5md"


def precious_of(target: Path) -> list[str]:
    every = target.parents[1].rglob("*")
    return sorted(
        str(path.relative_to(target.parents[1])) for path in every if "mdio" not in str(path)
    )


def test_files_of_former_runs_go_with_what_was_made_of_them(target: Path) -> None:
    """Compressed chunks lie in ``NAME.1`` once a second run has begun."""
    lock = lock_file(target)
    former = [lock.with_name(f".a.h5md.{n}{lock.name[7:-5]}.tmp") for n in ("1", "12", "new")]
    for path in former:
        path.touch()
    stays = lock.with_name(f".a.h5md.old{lock.name[7:-5]}.tmp")
    stays.touch()
    clean_up([target])
    assert [path.exists() for path in former] == [False] * 3
    assert stays.exists() and target.exists()


OUTSIDE = ["../precious", "precious", "thesis.txt", ".", "..", "", "a.h5md.parts/../precious", 5]


@pytest.mark.parametrize("name", [*OUTSIDE, "/precious"])
@pytest.mark.parametrize("key", ["aside", "new", "goal"])
def test_a_plan_names_no_other_files(target: Path, key: str, name: object) -> None:
    before = precious_of(target)
    is_known = isinstance(name, str) and (target.parent / name).exists()
    known = read_identity(target.parent / str(name)) if is_known else 1
    plan = {
        "aside": {"aside": [name]},
        "new": {"new": {str(name): known, "a.h5md": 1}},
        "goal": {"goal": name},
    }[key]
    owner = f"{HERE}-{dead_pid()}-deadbeef"
    lock_file(target, **plan)
    lock_file(target, owner, **plan)
    for name in ("precious", "a.h5md"):  # moved aside, as the plan has it
        (target.parent / f".{name}.mdio-{owner}.old").mkdir()
    clean_up([target], discard_unfinished=True)
    assert precious_of(target) == before


@as_root
def test_a_lock_of_another_user_is_not_obeyed(target: Path) -> None:
    lock = lock_file(target)
    temporary = lock.with_suffix(".tmp")
    temporary.touch()
    os.chown(lock, ANOTHER, -1)
    clean_up([target])
    assert temporary.exists() and lock.exists()


@pytest.mark.parametrize("kind", ["link", "second name", "pipe"])
def test_a_lock_is_a_file_under_one_name(target: Path, kind: str) -> None:
    lock = lock_file(target)
    temporary = lock.with_suffix(".tmp")
    temporary.touch()
    there = lock.rename(target.parent / "text")
    if kind == "pipe":
        os.mkfifo(lock)
    else:
        (lock.symlink_to if kind == "link" else lock.hardlink_to)(there)
    clean_up([target])
    assert temporary.exists()


def journal_with_a_frame(folder: Path) -> Path:
    temporary = folder / f".a.zarr.mdio-{HERE}-{dead_pid()}-00000000.tmp"
    temporary.mkdir()
    with Journal(temporary, {"of": {}, "n_frames": 9, "uuid": "a"}) as journal:
        journal.add(Record(0, 4, {"nbytes": 9}), [])
    assert find_unfinished(temporary) is not None
    return temporary


@as_root
def test_a_journal_of_another_user_tells_nothing(tmp_path: Path) -> None:
    temporary = journal_with_a_frame(tmp_path)
    os.chown(journal_path(temporary), ANOTHER, -1)
    assert find_unfinished(temporary) is None
    with pytest.raises(OSError, match="another user"), Journal(temporary, {}):
        pass
    with publish(tmp_path / "a.zarr", resume=True, identity={}) as another:
        assert not another.exists()
        another.write_text("new")


def test_a_journal_is_not_written_through_a_link(tmp_path: Path) -> None:
    temporary = journal_with_a_frame(tmp_path)
    thesis = journal_path(temporary).rename(tmp_path / "thesis.txt")
    data = thesis.read_bytes()
    journal_path(temporary).symlink_to(thesis)
    with pytest.raises(OSError), Journal(temporary, {}):
        pass
    assert find_unfinished(temporary) is None
    journal_path(temporary).unlink()
    os.mkfifo(journal_path(temporary))
    with pytest.raises(OSError, match="a pipe"):
        read_journal(journal_path(temporary))
    assert thesis.read_bytes() == data


@pytest.mark.parametrize("change", [{"uuid": "../../precious"}, {"uuid": 5}, {"division": [1]}])
def test_a_journal_that_mdio_does_not_write(
    tmp_path: Path, adk: dict[str, Path], monkeypatch: pytest.MonkeyPatch, change: dict[str, object]
) -> None:
    out = tmp_path / "a.h5md"
    monkeypatch.setattr(conversion, "read_back", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        mdio.convert(adk["xtc"], out)
    monkeypatch.undo()
    (path,) = tmp_path.glob(".*.journal")
    first, *others = read_journal(path)[0]
    first = replace(first, values={**first.values, **change})
    path.write_bytes(MAGIC + b"".join(record.to_bytes() for record in (first, *others)))
    with pytest.raises(OutputError, match="--force"):
        mdio.convert(adk["xtc"], out, resume=True)
    mdio.convert(adk["xtc"], out, force=True)
