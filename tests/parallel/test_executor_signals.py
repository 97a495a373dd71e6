"""Signals that end a program end its workers too, whenever they come."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from mdio.parallel.executors import Processes

pytestmark = pytest.mark.usefixtures("ending_signals")


def signal_handlers(_):
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def test_signals_are_the_parents_affair():
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        handlers = Processes(1).map(signal_handlers, [0])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert handlers == [[signal.SIG_IGN, signal.SIG_DFL]]


SCRIPT = textwrap.dedent(
    """
    import multiprocessing, os, sys, time
    from mdio.parallel.executors import Processes

    def work(x):
        os.write(1, b"at work\\n")  # at one go: the lines of two workers do not mix
        time.sleep(60 if x else 0)

    try:
        Processes(2).map(work, range(8))
    except KeyboardInterrupt:
        print("interrupted", len(multiprocessing.active_children()), flush=True)
    """
)


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_signal_while_a_worker_is_forked(number):
    """Python only prints what is raised while it forks, and goes on."""
    code = textwrap.dedent(
        f"""
        import os, signal
        from mdio.parallel.executors import Processes

        def leave(*_):
            raise SystemExit(7)

        signal.signal(signal.{number}, leave)
        os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.{number}))
        Processes(1).map(abs, [1])
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (7, "")


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_interrupt_and_orphans(sent, tmp_path):
    """Ctrl-C (sent to the whole group) ends all at once; orphans leave when they are done."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT if sent == signal.SIGINT else SCRIPT.replace("60 if x else 0", "1"))
    run = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert [run.stdout.readline() for _ in range(2)] == ["at work\n"] * 2
    start = time.monotonic()
    if sent == signal.SIGINT:
        os.killpg(run.pid, sent)
    else:
        run.kill()
    rest = run.stdout.read()  # ends when the last worker has let go of stdout
    run.wait()
    run.stdout.close()
    assert time.monotonic() - start < 20
    if sent == signal.SIGINT:
        assert "interrupted 0" in rest
