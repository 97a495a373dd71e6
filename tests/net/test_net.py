"""The golden tests of the product: what it writes, says and reads, frozen (see `net.py`).

``python tests/net/test_net.py`` records what it does now, once a change of that is meant to be.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GOLDEN = HERE / "golden.json"
PARTS = 4
"""So many runs share the conversions, as tests do that run side by side."""


def run(kind, number, of):
    """Return what one part of the net gives now."""
    words = [sys.executable, "-W", "ignore", str(HERE / "net.py"), kind, str(number), str(of)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def differences(golden, found, where=""):
    """Yield the names of all that differs."""
    if isinstance(golden, dict) and isinstance(found, dict):
        for key in sorted({*golden, *found}):
            yield from differences(golden.get(key), found.get(key), f"{where} / {key}")
    elif golden != found:
        yield f"{where}: {golden} -> {found}"


@pytest.mark.parametrize(
    ("kind", "part"), [("conversions", k) for k in range(PARTS)] + [("reads", 0)]
)
def test_the_product_does_what_it_did(kind, part):
    of = PARTS if kind == "conversions" else 1
    found = run(kind, part, of)
    golden = json.loads(GOLDEN.read_text())[kind]
    names = list(golden)[part::of]
    assert list(found) == names
    changed = list(differences({name: golden[name] for name in names}, found))
    assert not changed, "\n".join(changed[:40])


def test_nothing_asks_for_more_than_it_did():
    golden = json.loads(GOLDEN.read_text())["requests"]
    found = run("requests", 0, 1)
    assert list(found) == list(golden)
    more = {
        name: (golden[name], found[name])
        for name in golden
        if any(now > then for now, then in zip(found[name], golden[name], strict=True))
    }
    assert not more, "number of reads or requests, and bytes, then and now"


if __name__ == "__main__":
    kinds = ("conversions", "reads", "requests")
    text = json.dumps({kind: run(kind, 0, 1) for kind in kinds}, indent=0)
    GOLDEN.write_text(text + "\n")
