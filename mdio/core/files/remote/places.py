"""Where an output goes in a store: what is there, whose it is, and how one replaces another."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mdio.core.errors import OutputError
from mdio.core.files.marks import is_output
from mdio.core.files.remote.paths import MANIFESTS, RemotePath
from mdio.core.files.remote.sending import copy, delete, names_below, put

MARK = "mdio-unfinished.json"
STAGE = "mdio-new-"
"""How the folder begins in which an output is whole that is to replace another one."""
SENDERS = 8
"""Objects that are sent, or copied, at the same time, ..."""
SMALL_SENDERS, SMALL_NBYTES = 32, 1 << 20
"""... and small ones, which take no longer than their answers do."""


class Place:
    """The name of an output in a store.

    `goal`: the name. Attributes: `token`: of the run that writes there. `where`: where the objects
    of a folder go: its name, or a folder inside the former output.
    """

    def __init__(self, goal: RemotePath) -> None:
        self.goal = self.where = goal
        self.token = secrets.token_hex(8)
        self.begun = False
        self._there: dict[str, int] = {}

    def look(self, *, force: bool, former: str | None) -> bool:
        """Find out what is there, and clear what a dead run has left.

        `force`: whether a former output will be replaced. `former`: the token of a run that is to
        be gone on with.
        Returns bool: whether it is.
        Raises OutputError: what is there must not be replaced.
        """
        self._there = names_below(self.goal)
        mark = self._mark()
        if mark.get("moving"):
            self._exchange(self._stage(mark["token"]))
            self._there, mark = names_below(self.goal), {}
        if not force and (self._manifests or self.goal.is_object()):
            raise OutputError(f"{self.goal}: it exists already; choose another name or use --force")
        if self._there and not mark and not is_output(self.goal):
            raise OutputError(
                f"{self.goal}: there are objects below it that mdio did not write; remove them "
                "yourself or choose another name"
            )
        goes_on = bool(mark) and former == mark.get("token")
        if goes_on:
            self.token, self.begun = mark["token"], True
        elif mark and not force:
            raise OutputError(
                f"{self.goal}: an output that was begun {mark.get('begun')} is not finished there; "
                "if nobody is at it any more, give --force to remove it and begin anew"
            )
        self.where = self._stage(self.token) if self._manifests else self.goal
        if not goes_on:
            old = {name for name in self._there if STAGE not in name} if self._manifests else set()
            delete(self.goal / name for name in self._there.keys() - (old - {MARK}))
        return goes_on

    def mark(self) -> None:
        """Tell others that a folder is being sent; raises OutputError if one is already."""
        if self.goal.is_object():
            raise OutputError(f"{self.goal}: an object, and no folder; remove it yourself")
        begun = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        said = {"token": self.token, "begun": begun}
        try:
            put(self.goal / MARK, json.dumps(said).encode(), new=True)
        except FileExistsError:
            raise self._taken() from None
        self.begun = True

    def put_object(self, data: Path) -> None:
        """Send a file as an object of this name, and look whether it is there."""
        if self._there:
            raise OutputError(f"{self.goal}: a folder, and no object; remove it yourself")
        put(self.goal, data)
        self._compare({"": self.goal.stat().st_size}, {"": data.stat().st_size})

    def compare(self, expected: Mapping[str, int]) -> None:
        """Have all objects there that should be, and no others.

        Raises OutputError, OSError: another run has the folder; one is not there, or not whole.
        """
        self._there = names_below(self.goal)
        if self._mark().get("token") != self.token:
            raise self._taken()
        there = self._there if self.where == self.goal else names_below(self.where)
        self._compare(there, expected)
        delete(self.where / name for name in there.keys() - expected.keys() - {MARK})

    def _compare(self, there: Mapping[str, int], expected: Mapping[str, int]) -> None:
        for name, nbytes in expected.items():
            if there.get(name) != nbytes:
                found = f"{there.get(name, 0)} bytes are there, {nbytes} were sent"
                raise OSError(5, found, str(self.where / name))

    def finish(self) -> None:
        """Have what is whole now take the name."""
        if self.where == self.goal:
            delete([self.goal / MARK])
            return
        said = {"token": self.token, "moving": True}
        put(self.goal / MARK, json.dumps(said).encode())
        self._there = names_below(self.goal)
        self._exchange(self.where)

    def withdraw(self) -> None:
        """Remove what was sent."""
        if self.begun:
            delete(self.where / name for name in names_below(self.where))
            delete([self.goal / MARK])

    def _exchange(self, stage: RemotePath) -> None:
        """Put what is whole in `stage` in the place of the former output; may be done again."""
        begin = f"{stage.name}/"
        staged = {name.removeprefix(begin) for name in self._there if name.startswith(begin)}
        old = {name for name in self._there if not name.startswith(STAGE)}
        last = staged & set(MANIFESTS)
        delete(self.goal / name for name in self._manifests)
        delete(self.goal / name for name in old - staged - {MARK, *MANIFESTS})
        with ThreadPoolExecutor(SENDERS) as pool:
            list(pool.map(lambda name: copy(stage / name, self.goal / name), staged - last))
        for name in last:
            copy(stage / name, self.goal / name)
        delete([self.goal / MARK])
        delete(stage / name for name in staged)

    def _stage(self, token: str) -> RemotePath:
        return self.goal / f"{STAGE}{token}{self.goal.suffix}"

    @property
    def _manifests(self) -> list[str]:
        return [name for name in self._there if name in MANIFESTS]

    def _mark(self) -> dict[str, Any]:
        if MARK not in self._there:
            return {}
        found = json.loads((self.goal / MARK).read_bytes())
        return found if isinstance(found, dict) else {}

    def _taken(self) -> OutputError:
        return OutputError(f"{self.goal}: another run has begun to write it meanwhile")
