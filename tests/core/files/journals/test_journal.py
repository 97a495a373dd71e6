"""The journal of what is done of an output: what of it is believed."""

import errno
import json
import re
import threading
import time

import numpy as np
import pytest
from suites.outputs import as_options

import mdio
from mdio.core.errors import OutputError
from mdio.core.files import journal as journals
from mdio.core.files.journal import (
    MAGIC,
    Journal,
    Record,
    find_unfinished,
    journal_path,
    read_journal,
)
from mdio.core.words import human_nbytes

SAID = {"of": {"version of mdio": "1", "plan": {"chunk": [4, 2]}}, "n_frames": 12, "uuid": "a"}


@pytest.fixture
def temporary(tmp_path):
    path = tmp_path / ".a.zarr.mdio-host-1-00000000.tmp"
    path.touch()
    return path


def record(first, n_frames=4):
    return Record(first, n_frames, {"nbytes": 9}, [np.arange(first, first + 3.0)])


@pytest.fixture
def journal(temporary):
    with Journal(temporary, SAID) as made:
        for first in (0, 4, 8):
            made.add(record(first), [temporary])
    return journal_path(temporary)


def test_the_space_reserved_for_it_stays(temporary):
    """Its first pieces find room on a disk that is full by then."""
    with Journal(temporary, SAID):
        status = journal_path(temporary).stat()
    if status.st_blocks:  # the file system can reserve
        assert 512 * status.st_blocks >= journals.RESERVED_NBYTES


def test_what_differs_far_in_a_long_text_is_shown():
    begin = "x" * 200
    difference = journals.describe_changed_options({"top": begin + "a"}, {"top": begin + "b"})
    assert difference == f'top: ...{"x" * 40}a" then, ...{"x" * 40}b" now'
    assert journals.describe_changed_options({"top": "null.pdb"}, {}) == (
        'top: "null.pdb" then, not given now'
    )


def test_what_was_added_is_read_again(journal, temporary):
    said, *found = read_journal(journal)[0]
    assert said.values == SAID
    assert [(one.first, one.n_frames) for one in found] == [(0, 4), (4, 4), (8, 4)]
    assert found[1].arrays[0].tolist() == [4.0, 5.0, 6.0]
    with Journal(temporary, {"another": 1}) as again:
        assert again.values == SAID and len(again.records) == 3


def test_records_are_there_at_once_and_flushed_later(temporary, monkeypatch):
    monkeypatch.setattr(journals, "FLUSH_INTERVAL_S", 0.01)
    flushing, go_on, flushed = threading.Event(), threading.Event(), []

    def flush(path):
        flushed.append(path)
        flushing.set()
        go_on.wait(60)

    monkeypatch.setattr(journals, "flush", flush)
    with Journal(temporary, SAID) as made:
        made.add(record(0), [temporary])
        flushing.wait(60)
        made.add(record(4), [temporary])
        found = read_journal(made.path)[0][1:]
        assert [(one.first, one.flushed) for one in found] == [(0, False), (4, False)]
        monkeypatch.setattr(journals, "FLUSH_INTERVAL_S", 3600.0)
        go_on.set()
        until = time.monotonic() + 60
        while not read_journal(made.path)[0][1].flushed and time.monotonic() < until:
            time.sleep(0.01)
    found = read_journal(made.path)[0][1:]
    assert [(one.first, one.flushed) for one in found] == [(0, True), (4, False)]
    assert flushed == [temporary, temporary.parent]


def test_marks_of_another_run_count_its_records_only(temporary, monkeypatch):
    with Journal(temporary, SAID) as made:
        made.add(record(0), [temporary])
    with Journal(temporary, SAID) as made:
        made.add(record(4), [temporary])
        made._flush()
        made.add(record(8), [temporary])
    with Journal(temporary, SAID) as made:
        told = [(one.first, one.flushed) for one in made.records]
    assert told == [(0, False), (4, True), (8, False)]


def test_a_record_stays_when_a_signal_ends_its_call(temporary, monkeypatch):
    """It was written, and the next mark must not take its place."""
    write = journals.write_all

    def ended(*words):
        write(*words)
        raise KeyboardInterrupt

    def unreadable(path):
        raise OSError(errno.EMFILE, "too many open files")

    with Journal(temporary, SAID) as made:
        made.add(record(0), [temporary])
        with monkeypatch.context() as there:
            there.setattr(journals, "write_all", ended)
            with pytest.raises(KeyboardInterrupt):
                made.add(record(4), [temporary])
        made._flush()
        with monkeypatch.context() as there:
            there.setattr(journals, "write_all", ended)
            there.setattr(journals, "read_journal", unreadable)
            with pytest.raises(KeyboardInterrupt):
                made.add(record(8), [temporary])
        found = read_journal(made.path)[0][1:]
    assert [(one.first, one.flushed) for one in found] == [(0, True), (4, True), (8, False)]


def test_the_end_waits_for_no_disk_that_does_not_answer(temporary, monkeypatch):
    monkeypatch.setattr(journals, "FLUSH_INTERVAL_S", 0.01)
    monkeypatch.setattr(journals, "MAX_CLOSE_WAIT_S", 0.01)
    asked, answers = threading.Event(), threading.Event()
    monkeypatch.setattr(journals, "flush", lambda path: asked.set() or answers.wait(60))
    with Journal(temporary, SAID) as made:
        made.add(record(0), [temporary])
        asked.wait(60)
        made.add(record(4), [temporary])
    answers.set()
    made._thread.join()
    found = read_journal(made.path)[0][1:]
    assert [(one.first, one.flushed) for one in found] == [(0, False), (4, False)]


def test_a_torn_end_is_dropped_and_written_over(journal, temporary):
    data = journal.read_bytes()
    end = read_journal(journal)[1]
    whole = len(read_journal(journal)[0])
    for cut in range(len(MAGIC), end):
        journal.write_bytes(data[:cut])
        assert len(read_journal(journal)[0]) < whole
    journal.write_bytes(data[: end - 1])
    with Journal(temporary, SAID) as again:
        assert len(again.records) == 2
        again.add(record(8), [temporary])
    assert len(read_journal(journal)[0]) == whole


def test_nothing_behind_a_flipped_bit_is_believed(journal):
    data = bytearray(journal.read_bytes())
    end = read_journal(journal)[1]
    for at in range(len(MAGIC), end):
        data[at] ^= 4
        journal.write_bytes(data)
        found = read_journal(journal)[0]
        assert len(found) < 4
        assert [one.first for one in found[1:]] == [0, 4, 8][: max(0, len(found) - 1)]
        data[at] ^= 4


def test_what_is_no_journal_tells_nothing(journal, temporary):
    journal.write_bytes(b"something else")
    assert read_journal(journal) == ([], 0)
    assert find_unfinished(temporary) is None


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({"version of mdio": "2", "plan": {"chunk": [4, 2]}}, 'version of mdio: "1" then, "2" now'),
        ({"version of mdio": "1", "plan": {"chunk": [4, 3]}}, "plan, chunk 1: 2 then, 3 now"),
        ({"version of mdio": "1", "plan": {"chunk": [4]}}, "plan, chunk 1: 2 then, not given now"),
        ({"version of mdio": "1"}, "plan: "),
    ],
)
def test_another_conversion_is_told_by_its_first_difference(journal, temporary, now, told):
    left = find_unfinished(temporary)
    assert left.n_frames == 12
    left.check_identity(temporary, json.loads(json.dumps(SAID["of"])))
    with pytest.raises(OutputError, match="a different conversion was left unfinished") as caught:
        left.check_identity(temporary, now)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"precision": 0.01}, "precision: not given then, 0.01 now"),
        ({"chunk_frames": 2}, "chunk_frames: 4 then, 2 now"),
        ({"stop": 90}, "stop: not given then, 90 now"),
        ({"select": range(9)}, r"select: not given then, .*\[0, 9"),
        ({"groups": {"ca": range(9)}}, "groups: not given then, "),
    ],
    ids=str,
)
def test_other_options_are_named(adk, tmp_path, monkeypatch, change, named):
    add = Journal.add

    def full(self, *words):
        add(self, *words)
        raise OSError(28, "full")

    options = {"chunk_frames": 4}
    monkeypatch.setattr(Journal, "add", full)
    with pytest.raises(OutputError, match="use --resume to continue"):
        mdio.convert(adk["dcd"], tmp_path / "a.zarr", **as_options(options))
    monkeypatch.undo()
    with pytest.raises(OutputError, match=r"give --resume .* to continue it, or --force"):
        mdio.convert(adk["dcd"], tmp_path / "a.zarr", **as_options(options))
    with pytest.raises(OutputError, match=rf"a different conversion was left.* \({named}"):
        mdio.convert(adk["dcd"], tmp_path / "a.zarr", resume=True, **as_options(options | change))
    mdio.convert(adk["dcd"], tmp_path / "a.zarr", resume=True, **as_options(options))
    assert mdio.verify(tmp_path / "a.zarr", adk["dcd"]).ok
    assert [path.name for path in tmp_path.iterdir()] == ["a.zarr"]


def full(self, *words):
    add(self, *words)
    raise OSError(28, "full")


add = Journal.add


@pytest.mark.parametrize("name", ["a.zarr", "a.h5md"])
def test_the_size_told_is_that_of_the_frames_kept(adk, tmp_path, monkeypatch, name):
    """What is allocated is more: of an h5md file all of its space may be, from the beginning."""
    monkeypatch.setattr(Journal, "add", full)
    with pytest.raises(OutputError) as caught:
        mdio.convert(adk["dcd"], tmp_path / name, precision="none")
    n_frames = int(re.search(r" (\d+) of 98 frames", str(caught.value))[1])
    assert n_frames < 98
    assert f"({human_nbytes(12 * n_frames * 3341)}) are kept in" in str(caught.value)


def test_what_replaces_an_output_is_continued_by_force(adk, tmp_path, monkeypatch):
    out = tmp_path / "a.zarr"
    options = {"storage": mdio.Storage(chunk_frames=4)}
    mdio.convert(adk["dcd"], out, stop=3)
    with monkeypatch.context() as there:
        there.setattr(Journal, "add", full)
        with pytest.raises(OutputError, match="use --force --resume to continue, --force alone"):
            mdio.convert(adk["dcd"], out, force=True, **options)
    for resume in (False, True):  # append has not its options, and would drop what is kept
        with pytest.raises(OutputError, match=r"that was to replace it .*give mdio convert its so"):
            mdio.convert(adk["dcd"], out, append=True, resume=resume)
    mdio.convert(adk["dcd"], out, force=True, resume=True, **options)
    assert mdio.verify(out, adk["dcd"]).ok


def test_what_adds_to_an_output_is_continued_without_force(adk, tmp_path, monkeypatch):
    out = tmp_path / "a.zarr"
    mdio.convert(adk["dcd"], out, stop=8, storage=mdio.Storage(chunk_frames=4))
    kept = "8 of the 90 frames to write"  # not of the 98 that the output has then
    with monkeypatch.context() as there:
        there.setattr(Journal, "add", full)
        advice = "use --resume to continue, --force to start over"
        with pytest.raises(OutputError, match=rf"; {kept} \(.*{advice}"):
            mdio.append(adk["dcd"], out)
    with pytest.raises(OutputError, match=rf"; {kept} \("):
        mdio.append(adk["dcd"], out)
    with pytest.raises(OutputError, match="use mdio append with --resume to continue, --force to"):
        mdio.convert(adk["dcd"], out, resume=True)
    with pytest.raises(OutputError, match=r"an append was left unfinished.*give mdio append the"):
        mdio.convert(adk["dcd"], out, resume=True, force=True)
    result = mdio.convert(adk["dcd"], out, append=True, resume=True)
    assert f"{kept} taken from an earlier run" in result.plan.notes
    assert mdio.verify(out, adk["dcd"]).ok and mdio.open(out).info.n_frames == 98
