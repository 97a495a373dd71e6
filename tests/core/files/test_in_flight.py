"""Several requests under way: the right bytes, bounded memory, and none where they do not pay."""

import itertools
import multiprocessing
import os
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mdio.core.files import in_flight
from mdio.core.files.in_flight import ByteRange, InFlight, RequestLimit
from mdio.core.files.reading import OpenFile

SIZE = 300_000
DATA = np.random.default_rng(5).integers(0, 256, SIZE, dtype=np.uint8)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("in-flight") / "bytes"
    path.write_bytes(DATA.tobytes())
    return path


@pytest.fixture(scope="module")
def file(path):
    with OpenFile(path) as file:
        yield file


@pytest.fixture(scope="module", autouse=True)
def _as_over_a_network():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_flight, "is_local", lambda *_: False)
        yield


@pytest.fixture(autouse=True)
def _ended():
    """Leave no threads behind, also where a test fails."""
    yield
    in_flight._stop_all()


@pytest.fixture(scope="module")
def _as_if_all_reads_waited():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_flight, "n_waits", itertools.count().__next__)
        patch.setattr(in_flight, "CACHED_NBYTES_PER_S", 1e30)
        yield


@pytest.fixture
def slow(monkeypatch):
    """Storage that takes some milliseconds a request; counts how many are under way."""
    seen = {"now": 0, "most": 0, "requests": []}
    lock = threading.Lock()
    read = in_flight.read

    def slowly(fd, buffer, offset):
        with lock:
            seen["now"] += 1
            seen["most"] = max(seen["most"], seen["now"])
            seen["requests"].append((offset, buffer.nbytes))
        time.sleep(0.002)
        read(fd, buffer, offset)
        with lock:
            seen["now"] -= 1
        return 0.002

    monkeypatch.setattr(in_flight, "read", slowly)
    return seen


def fetch(file, offset, nbytes, n_buffers=1):
    """Read as layouts do: what is in flight, and the rest from the file."""
    out = np.zeros(nbytes, np.uint8)
    file.fill(offset, *(one for one in np.array_split(out, n_buffers) if one.size))
    return out


ranges = st.lists(
    st.tuples(st.integers(0, SIZE - 1), st.integers(1, 40_000)).map(
        lambda one: (one[0], min(one[1], SIZE - one[0]))
    ),
    max_size=12,
)


@pytest.mark.usefixtures("_as_if_all_reads_waited")
@settings(max_examples=150)
@given(expected=ranges, read=ranges, sizes=st.sampled_from([(4096, 4096), (30_000, 7_000)]))
def test_bytes_are_those_of_the_file_whatever_was_expected(file, expected, read, sizes):
    flight = InFlight(*sizes)
    flight.prefetch(ByteRange(file, *one) for one in expected)
    for offset, nbytes in read:
        assert np.array_equal(fetch(file, offset, nbytes, 3), DATA[offset : offset + nbytes])
    flight.stop()


def test_all_bytes_come_from_requests_and_each_once(file, slow):
    flight = InFlight(64_000, 8_000)
    flight.prefetch(ByteRange(file, at, 10_000) for at in range(0, SIZE, 10_000))
    for at in range(0, SIZE, 10_000):
        buffer = np.zeros(10_000, np.uint8)
        assert flight.read_into(file, [buffer], at) == 10_000
        assert np.array_equal(buffer, DATA[at : at + 10_000])
    flight.stop()
    assert sum(nbytes for _, nbytes in slow["requests"]) == SIZE
    assert len(slow["requests"]) <= SIZE / 8_000 + 1
    assert all(offset % 8_000 == 0 for offset, _ in slow["requests"])


def test_asking_goes_on_where_readers_leave_the_ends_of_requests(file, slow):
    flight = InFlight(64_000, 8_000)
    flight.prefetch(ByteRange(file, at, 8_000) for at in range(0, SIZE - 8_000, 8_000))
    for at in range(0, SIZE - 8_000, 8_000):  # as chunks that end before their stripes do
        buffer = np.zeros(7_900, np.uint8)
        assert flight.read_into(file, [buffer], at) == 7_900
        assert np.array_equal(buffer, DATA[at : at + 7_900])
    flight.stop()


def test_as_many_requests_are_under_way_as_are_wanted(file, slow):
    flight = InFlight(64_000, 4_000)
    flight.prefetch([ByteRange(file, 0, SIZE)])
    assert len(flight._requests) == in_flight.FIRST_REQUESTS
    flight.limit.n_requests = 16
    fetch(file, 0, 100)
    assert sum(not request.was_used for request in flight._requests) == 16
    fetch(file, 100, SIZE - 100)
    assert slow["most"] <= 16


def rates(monkeypatch, limit, nbytes_per_s, *, waited=True):
    """Return how many requests are wanted after each look at storage that gives so much."""
    now, wanted = 100.0, []
    monkeypatch.setattr(in_flight, "time", SimpleNamespace(perf_counter=lambda: now))
    limit.begin()
    for _ in range(6):
        n_requests = limit.n_requests
        seconds = n_requests * 4_000 / nbytes_per_s(n_requests)
        for _ in range(n_requests):
            now += seconds / n_requests
            limit.adapt(4_000, seconds, waited=waited)
        wanted.append(limit.n_requests)
    return wanted


def test_number_of_requests_grows_while_bytes_come_faster_and_is_bounded(monkeypatch):
    each, most = 1e6, RequestLimit(100, 4_000)
    assert rates(monkeypatch, most, lambda n: each * n) == [16, 32, 64, 100, 100, 100]
    bounded = rates(monkeypatch, RequestLimit(100, 4_000), lambda n: each * min(n, 16))
    assert bounded == [16, *[32] * 5]
    assert rates(monkeypatch, RequestLimit(100, 4_000), lambda _: each, waited=False) == [8] * 6
    assert most.n_cached == 0


def test_stores_are_asked_for_more_at_once_and_not_for_all_of_it(path, monkeypatch):
    """Four times the bytes, in requests of eight times the size; the first ones come first."""
    monkeypatch.setattr("mdio.core.files.in_flight.MAX_STORE_THREADS", 3)
    begun, gate = [], threading.Event()

    class Store:
        def buffered_bytes(self, _offset, _nbytes):
            return None

        def get(self, offset, nbytes):
            begun.append(offset)
            assert gate.wait(60)
            return DATA[offset : offset + nbytes].data

    flight = InFlight(32_000, 4_000)
    with OpenFile(path) as file:
        file.remote = Store()
        flight.prefetch([ByteRange(file, 0, SIZE)])
        assert [one.nbytes for one in flight._requests] == [32_000] * 4  # 128,000 bytes
        gate.set()
        assert np.array_equal(fetch(file, 0, SIZE), DATA)
        assert sorted(begun[:3]) == list(range(0, 96_000, 32_000))
        flight.stop()
        file.remote = None


def test_nothing_is_asked_for_where_the_page_cache_answers(file, monkeypatch):
    monkeypatch.setattr(in_flight, "n_waits", lambda: 0)
    others = set(threading.enumerate())  # of a layout that another test has left open
    flight = InFlight(64_000, 4_000)
    flight.prefetch([ByteRange(file, 0, SIZE)])
    assert np.array_equal(fetch(file, 0, SIZE), DATA)
    assert not flight.is_worthwhile
    assert flight.read_into(file, [np.zeros(10, np.uint8)], SIZE - 10) == 0
    new = set(threading.enumerate()) - others
    assert not any(thread.name.startswith("mdio in-flight") for thread in new)
    flight.stop()


def test_nothing_is_asked_for_on_disks_of_the_machine(file, monkeypatch):
    monkeypatch.setattr(in_flight, "is_local", lambda *_: True)
    flight = InFlight()
    flight.prefetch([ByteRange(file, 0, SIZE)])
    assert file.prefetcher is None
    assert not flight.is_worthwhile


def test_scattered_ranges_are_read_alone_and_neighbours_together(file, slow, monkeypatch):
    monkeypatch.setattr(in_flight, "MAX_GAP_NBYTES", 100)
    flight = InFlight(64_000, 50_000)
    flight.prefetch([ByteRange(file, 0, 10), ByteRange(file, 60, 40), ByteRange(file, 20_000, 7)])
    for offset, nbytes in ((0, 10), (60, 40), (20_000, 7)):
        assert np.array_equal(fetch(file, offset, nbytes), DATA[offset : offset + nbytes])
    assert slow["requests"] == [(0, 100), (20_000, 7)]
    flight.stop()


def test_ranges_are_looked_at_as_they_are_needed(file, slow):
    seen = []

    def endless():
        at = 0
        while True:
            seen.append(at)
            yield ByteRange(file, at % SIZE, 4_000)
            at += 4_000

    flight = InFlight(32_000, 4_000)
    flight.prefetch(endless())
    assert len(seen) <= 20
    flight.stop()


def test_what_cannot_be_read_is_left_to_the_caller(file):
    flight = InFlight(64_000, 4_000)
    flight.prefetch([ByteRange(file, SIZE - 1000, 5_000)])
    assert flight.read_into(file, [np.zeros(10, np.uint8)], SIZE + 5) == 0
    assert np.array_equal(fetch(file, SIZE - 1000, 1000), DATA[-1000:])
    flight.stop()


def test_descriptors_are_given_back_one_after_the_other(path, slow):
    files = [OpenFile(path) for _ in range(50)]
    flight = InFlight(SIZE, 50_000)
    flight.prefetch(ByteRange(file, 0, 1_000) for file in files)
    for file in files:
        assert np.array_equal(fetch(file, 0, 1_000), DATA[:1_000])
        assert len(flight._files) <= flight.limit.n_requests + 1
        file.close()
    assert not flight._files
    assert all(file.prefetcher is None for file in files)
    flight.stop()


def test_the_file_may_be_closed_while_requests_are_under_way(path, slow):
    file = OpenFile(path)
    flight = InFlight(SIZE, 50_000)
    flight.prefetch([ByteRange(file, 0, SIZE)])
    file.close()
    out = np.zeros(SIZE, np.uint8)
    assert flight.read_into(file, [out], 0) == SIZE
    assert np.array_equal(out, DATA)
    flight.prefetch([ByteRange(file, 0, SIZE)])
    assert flight.read_into(file, [out], 0) == 0
    flight.stop()


def test_a_fork_while_another_thread_reads(file, slow):
    """The thread gets its bytes, and the child does not wait for requests of lost threads."""
    flight, done, wrong = InFlight(64_000, 4_000), threading.Event(), []

    def read():
        try:
            while not done.is_set():
                flight.prefetch([ByteRange(file, 0, SIZE)])
                wrong.append(not np.array_equal(fetch(file, 0, 60_000), DATA[:60_000]))
        except BaseException as error:
            wrong.append(error)

    def read_in_child():
        flight.prefetch([ByteRange(file, 0, SIZE)])
        assert np.array_equal(fetch(file, 0, 20_000), DATA[:20_000])

    thread = threading.Thread(target=read)
    thread.start()
    codes = [0]
    while len(codes) < 21 and codes[-1] == 0:
        time.sleep(0.01)
        child = multiprocessing.get_context("fork").Process(target=read_in_child)
        child.start()
        child.join(20)
        codes.append(child.exitcode)
        child.kill()
    done.set()
    thread.join(20)
    assert not thread.is_alive()
    assert not any(wrong), wrong
    assert codes[-1] == 0
    flight.stop()


def test_threads_end_before_a_fork(file, slow):
    flight = InFlight(64_000, 4_000)
    flight.prefetch([ByteRange(file, 0, SIZE)])
    pid = os.fork()
    if pid == 0:
        same = np.array_equal(fetch(file, 0, 20_000), DATA[:20_000])
        os._exit(0 if same else 1)
    assert os.waitpid(pid, 0)[1] == 0
    flight.prefetch([ByteRange(file, 0, SIZE)])
    assert np.array_equal(fetch(file, 0, SIZE), DATA)
    flight.stop()
