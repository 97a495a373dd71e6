"""What ends the advisor early ends it, and leaves nothing behind."""

import contextlib
import os
import signal

import pytest

from mdio.advisor.measure import scratch

pytestmark = pytest.mark.usefixtures("ending_signals")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("is_passed_over", [False, True])
def test_signals_end_the_work_even_if_what_they_raise_is_passed_over(
    tmp_path, number, is_passed_over
):
    before = signal.getsignal(number)
    after = []
    with pytest.raises(SystemExit) as caught, scratch(tmp_path) as folder:
        (folder / "trial").write_text("half")
        with contextlib.suppress(SystemExit if is_passed_over else ()):
            os.kill(os.getpid(), number)
        after.append("went on")
    assert caught.value.code == 128 + number
    assert after == (["went on"] if is_passed_over else [])
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(number) == before
