"""The other end of `runner`: a process for every peer, asked in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "MDZ", "NUMEXPR")}
PYTHONS = {
    "peers.peer_mdio": Path(sys.executable),
    "peers.peer_mdanalysis": Path(sys.executable),
    "peers.peer_commands": Path(sys.executable),
    "peers.peer_mdtraj": ROOT / ".venv-peers/bin/python",
    "peers.peer_small": ROOT / ".venv-peers/bin/python",
    "peers.peer_zarrtraj": ROOT / ".venv-zarrtraj/bin/python",
}
"""In which environment each module of peers runs."""


class NotMeasuredError(Exception):
    """A peer is not installed, or failed: the message says why."""


@dataclass(frozen=True)
class Case:
    """One thing to be timed: the name in the table, who does it, and with what."""

    name: str
    module: str
    case: str
    args: dict[str, Any] = field(default_factory=dict)
    cores: int = 1


class PeerProcess:
    """A running `runner`."""

    def __init__(self, module: str) -> None:
        python = PYTHONS[module]
        if not python.exists():
            raise NotMeasuredError(f"{python.parent.parent.name} was not made")
        # A file, since a pipe that nobody reads would block; it lives as long as the process.
        self.told = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [str(python), str(HERE / "runner.py"), module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.told,
            text=True,
            env={**os.environ, **ONE_THREAD},
        )
        try:
            self.versions: dict[str, str] = self._answer()["versions"]
        except NotMeasuredError:
            self.told.seek(0)
            told = self.told.read().strip().splitlines()
            self.close()
            raise NotMeasuredError(told[-1] if told else "it did not start") from None

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise NotMeasuredError(f"its process ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise NotMeasuredError(answer["error"])
        return answer

    def ask(self, **request: Any) -> dict[str, Any]:
        """Return the answer to one request; raises NotMeasuredError."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise NotMeasuredError("its process ended") from None
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.told.close()


class Peers:
    """All processes, started when they are first needed."""

    def __init__(self) -> None:
        self.running: dict[str, PeerProcess] = {}
        self.failed: dict[str, str] = {}

    def versions(self) -> dict[str, str]:
        """Return the versions of all peers that run."""
        return {k: v for one in self.running.values() for k, v in one.versions.items()}

    def ask(self, case: Case, **more: Any) -> dict[str, Any]:
        """Have one case timed; raises NotMeasuredError."""
        if case.module in self.failed:
            raise NotMeasuredError(self.failed[case.module])
        if case.module not in self.running:
            try:
                self.running[case.module] = PeerProcess(case.module)
            except NotMeasuredError as error:
                self.failed[case.module] = str(error)
                raise
        try:
            return self.running[case.module].ask(
                case=case.case, args=case.args, cores=case.cores, **more
            )
        except NotMeasuredError:
            if self.running[case.module].process.poll() is not None:
                # It crashed over this case; the others get a new process.
                self.running.pop(case.module).close()
            raise

    def forget(self) -> None:
        """Let all processes drop what they have opened."""
        for one in self.running.values():
            one.ask(forget=True)

    def close(self) -> None:
        """End all processes."""
        for one in self.running.values():
            one.close()
