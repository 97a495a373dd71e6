"""Outputs in stores: requests that write, marks of who writes, and how an output replaces another.

A store cannot rename. Where an output replaces a former one, only its manifest changes in one step:
it first redirects to the folder into which objects were sent, until they have been copied to their
final names. In that folder, before, it redirects to the folder above for objects that both share.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from mdio.core.errors import OutputError
from mdio.core.files import marks
from mdio.core.files.marks import is_output, seal
from mdio.core.files.remote import objects
from mdio.core.files.remote.objects import NO_BUCKET, find, store_and_name, translated_errors
from mdio.core.files.remote.paths import MANIFESTS, RemotePath

KEY = "elsewhere"
STAGE = "mdio-new-"
"""Prefix of the folder into which an output is sent that will replace another one."""
ABOVE = ".."
KEPT_NS, SENT_NS = 0, 10**9
"""Modification times of placeholder files, which no other file has."""


class Redirect:
    """The folder to which an output's `manifest` redirects for some or all objects."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        value = manifest.get(KEY)
        entry = value if isinstance(value, dict) else {}
        name, names = str(entry.get("folder", "")), entry.get("names")
        self.folder = folder
        self._other: Path | None = None
        if name == ABOVE and folder.name.startswith(STAGE):
            self._other = folder.parent
        elif name.startswith(STAGE) and "/" not in name:
            self._other = folder / name
        self._names = frozenset(map(str, names)) if isinstance(names, list) else None

    def place(self, name: str) -> Path:
        """Return the path of an object: its final one, if it has been copied there."""
        if self._other is None or (self._names is not None and name not in self._names):
            return self.folder / name
        candidate = self._other / name
        if isinstance(candidate, RemotePath) and find(candidate) is None:
            return self.folder / name
        return candidate


def make_placeholder(target: Path, nbytes: int, *, sent: bool = False) -> None:
    """Create an empty file of the size of an object that it stands for.

    The object is part of the former output, or was `sent` for the new one.
    """
    with target.open("wb") as file:
        file.truncate(nbytes)
    os.utime(target, ns=(0, SENT_NS if sent else KEPT_NS))


def stands_for_kept(status: os.stat_result) -> bool:
    """Return whether a file stands for an object of the former output."""
    return status.st_mtime_ns == KEPT_NS


def stands_for_sent(file: Path) -> bool:
    """Return whether a file stands for an object that was sent."""
    with suppress(FileNotFoundError):
        return file.stat().st_mtime_ns == SENT_NS
    return False


def read_redirect(text: bytes) -> Any:
    """Return a manifest's redirect (`KEY`); None if it has none."""
    return _manifest(json.loads(text)).get(KEY)


def with_redirect(text: bytes, folder: str = "", names: Collection[str] | None = None) -> bytes:
    """Return a manifest that redirects `names` (None = all) to `folder`; "" = no redirect."""
    node = json.loads(text)
    manifest = _manifest(node)
    manifest.pop(KEY, None)
    if folder:
        manifest[KEY] = {"folder": folder, "names": None if names is None else sorted(names)}
    sealed = seal(manifest)
    manifest.clear()
    manifest.update(sealed)
    return json.dumps(node).encode()


def _manifest(node: dict[str, Any]) -> dict[str, Any]:
    manifest: dict[str, Any] = node["attributes"][marks.MARK] if "attributes" in node else node
    return manifest


PART_NBYTES = 8 << 20
"""Larger files are sent in parts of this size, several at a time; the last completes the object."""
PARTS = 8
CONDITIONAL_NBYTES = 64 << 20
"""Largest object sent by one conditional request, which must not take long."""


def current_tag(target: RemotePath) -> str | None:
    """Return the present ETag and version of an object; None if it does not exist."""
    objects.forget(target)
    answer = objects.find(target)
    return None if answer is None else answer.state.tag


def put(
    target: RemotePath,
    data: bytes | Path,
    *,
    new: bool = False,
    over: str | None = None,
    checked: bool = False,
) -> str:
    """Send some bytes, or a file, as an object, whole or not at all.

    Returns its ETag, as far as it is known.

    `target`: its name. `data`: what it is to hold. `new`: refuse where there is an object of this
    name. `over`: refuse where there is another one than had this `current_tag`, which is read
    before the first try, and is a condition of the request, where the store has conditions and a
    file is not so large that it goes in parts. `checked`: the caller has just read it.
    Raises FileExistsError: with `new` or `over`: there is another one. OSError: the store does not
    take it, after `objects.TRIES` tries.
    """
    import obstore
    from obstore.exceptions import NotSupportedError

    store, name = store_and_name(target)
    large = isinstance(data, Path) and data.stat().st_size > CONDITIONAL_NBYTES
    mode: Any = "overwrite"
    if new or over is not None:
        if not checked and current_tag(target) != over:
            raise FileExistsError(17, "there is another one by now", str(target))
        if not large:
            tag, _, version = (over or "").partition(" ")
            mode = {"e_tag": tag} | ({"version": version} if version else {}) if over else "create"
    in_parts = None if isinstance(data, Path) and mode == "overwrite" else False
    for attempt in range(objects.TRIES):
        try:
            with translated_errors(target):
                try:
                    answer = obstore.put(
                        store,
                        name,
                        data,
                        mode=mode,
                        use_multipart=in_parts,
                        chunk_size=PART_NBYTES,
                        max_concurrency=PARTS,
                    )
                except (NotSupportedError, NotImplementedError):
                    if mode == "overwrite" or current_tag(target) != over:
                        raise
                    mode = "overwrite"
                    continue
            return str(answer["e_tag"] or "")
        except FileExistsError:
            # Ours, from a try whose answer was lost.
            if attempt and _holds(target, data):
                return ""
            raise
        except PermissionError:
            raise
        except OSError as error:
            if isinstance(data, Path) and not data.exists():
                raise FileNotFoundError(2, "it is gone", str(data)) from error
            if attempt == objects.TRIES - 1:
                if isinstance(error, FileNotFoundError):
                    raise OSError(2, NO_BUCKET, str(target)) from None
                raise  # an earlier try whose answer was lost may have used up the parts
            time.sleep(objects.PAUSE_S * 2**attempt)
        finally:
            objects.forget(target)
    raise AssertionError


def _holds(target: RemotePath, data: bytes | Path) -> bool:
    objects.forget(target)
    try:
        return target.read_bytes() == (data if isinstance(data, bytes) else data.read_bytes())
    except OSError:
        return False


def copy(source: RemotePath, target: RemotePath) -> None:
    """Have the store copy an object, over one that is there; raises OSError."""
    import obstore

    store, name = store_and_name(source)
    objects.with_retries(source, lambda: obstore.copy(store, name, store_and_name(target)[1]))
    objects.forget(target)


def delete(targets: Iterable[RemotePath]) -> None:
    """Remove objects; missing ones are ignored. Raises OSError."""
    import obstore

    paths = list(targets)
    for path in paths:
        objects.forget(path)
    if paths:
        store = store_and_name(paths[0])[0]
        with translated_errors(paths[0]):
            try:
                obstore.delete(store, [store_and_name(path)[1] for path in paths])
            except FileNotFoundError:
                for path in paths:  # some stores refuse all if one is missing
                    try:
                        obstore.delete(store, store_and_name(path)[1])
                    except FileNotFoundError:
                        continue


def names_below(folder: RemotePath) -> dict[str, int]:
    """Return the names of all objects below `folder`, relative to it, and their bytes.

    Raises OSError: the store does not list them.
    """
    import obstore

    store, name = store_and_name(folder)
    try:
        entries = objects.with_retries(
            folder, lambda: [entry for batch in obstore.list(store, f"{name}/") for entry in batch]
        )
    except OSError as error:
        if "404 Not Found" in str(error.strerror):  # errors of lists have no kind
            raise OSError(2, NO_BUCKET, str(folder)) from None
        raise
    return {entry["path"][len(name) + 1 :]: entry["size"] for entry in entries}


MARK = "mdio-unfinished.json"
TOKEN = re.compile("[0-9a-f]{16}")
SENDERS = 8
"""Objects sent, or copied, at the same time."""
SMALL_SENDERS, SMALL_NBYTES = 32, 1 << 20
"""The same for objects up to this size, whose time is that of the answer."""


def run_concurrently(*calls: Callable[[], Any]) -> list[Any]:
    """Return the results of calls that run in threads at the same time; raises the first error."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def settle(goal: Path) -> None:
    """Finish an exchange that a dead run has left half done; raises OSError."""
    if isinstance(goal, RemotePath) and not str(goal).lower().startswith("http"):
        place = OutputPlace(goal)
        place.find()
        place.settle()


class OutputPlace:
    """The name of an output in a store.

    `goal`: the name. Attributes: `token`: of the run that writes there. `where`: where the objects
    of a folder go: its name, or a folder inside the former output. `is_done`: whether the output
    has taken its name, though objects may have to be copied yet.
    """

    def __init__(self, goal: RemotePath) -> None:
        self.goal = self.where = goal
        self.token = os.urandom(8).hex()
        self.begun = self.is_done = False
        self._there: dict[str, int] = {}
        self._over: str | None = None

    def find(self) -> None:
        """List the existing objects."""
        self._there = names_below(self.goal)

    def settle(self) -> None:
        """Finish an exchange that was left half done."""
        mark = self._mark()
        if mark.get("moving"):
            stage = self._stage(mark["token"])
            try:
                self._exchange(stage, mark.get("over"))
            except FileExistsError:  # its time is over
                delete([self.goal / MARK])
                delete(self.goal / name for name in self._there if name.startswith(stage.name))
            self.find()
            self.is_done = False

    def look(self, *, replace: bool, anew: bool, former: str | None) -> bool:
        """List the existing objects, and remove those of a dead run.

        `replace`: whether a former output will be replaced. `anew`: whether what a run has left
        that did not end may be removed. `former`: the token of a run that is resumed.
        Returns bool: whether that run is continued.
        Raises OutputError: the existing objects must not be replaced.
        """
        _, is_object = run_concurrently(self.find, self.goal.is_object)
        self.settle()
        mark = self._mark()
        is_object = is_object and not self._manifests
        if not replace and (self._manifests or is_object):
            raise OutputError(f"{self.goal}: it exists already; choose another name or use --force")
        if self._there and not mark and not is_output(self.goal):
            raise OutputError(
                f"{self.goal}: there are objects below it that mdio did not write; remove them "
                "yourself or choose another name"
            )
        continues = bool(mark) and former == mark.get("token")
        if continues:
            self.token, self.begun = mark["token"], True
        elif mark and not anew:
            raise OutputError(
                f"{self.goal}: an output that was begun {mark.get('begun')} is not finished there; "
                "if nobody is at it any more, give --resume where it was begun to go on with it, "
                "or --force to start again"
            )
        self.where = self._stage(self.token) if self._manifests else self.goal
        if self._manifests or is_object:
            self._over = current_tag(
                self.goal / self._manifests[0] if self._manifests else self.goal
            )
        if not continues:
            old = {name for name in self._there if STAGE not in name} if self._manifests else set()
            delete(self.goal / name for name in self._there.keys() - (old - {MARK}))
        return continues

    def new_names(self) -> dict[str, int]:
        """Return the bytes of each stored object of the new output, by name."""
        begin = "" if self.where == self.goal else f"{self.where.name}/"
        sizes = self._there.items()
        return {name.removeprefix(begin): n for name, n in sizes if name.startswith(begin)}

    def mark(self) -> None:
        """Mark the folder as being written; raises OutputError if another run has."""
        if self.goal.is_object():
            raise OutputError(f"{self.goal}: an object, and no folder; remove it yourself")
        begun = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        mark = {"token": self.token, "begun": begun}
        try:
            put(self.goal / MARK, json.dumps(mark).encode(), new=True, checked=True)
        except FileExistsError:
            raise self._taken() from None
        self.begun = True

    def put_object(self, data: Path, *, same: bool) -> None:
        """Send a file as the object `goal`, and check its size.

        `same`: only over the object that existed when the run began.
        """
        if self._there:
            raise OutputError(f"{self.goal}: a folder, and no object; remove it yourself")
        try:
            put(self.goal, data, over=self._over if same else None, new=same and not self._over)
        except FileExistsError:
            raise self._taken() from None
        self._compare({"": self.goal.stat().st_size}, {"": data.stat().st_size})

    def compare(self, expected: Mapping[str, int], kept: Mapping[str, int]) -> None:
        """Check that exactly the expected objects are stored, and delete all others.

        `kept`: those of the former output that are also of this one.
        Raises OutputError, OSError: another run has the folder; one is not there, or not whole.
        """
        _, mark = run_concurrently(self.find, self._read_mark)
        if mark.get("token") != self.token:
            raise self._taken()
        stored = self._there if self.where == self.goal else names_below(self.where)
        self._compare(stored, expected)
        self._compare(self._there, kept)
        delete(self.where / name for name in stored.keys() - expected.keys() - {MARK})

    def _compare(self, stored: Mapping[str, int], expected: Mapping[str, int]) -> None:
        for name, nbytes in expected.items():
            if stored.get(name) != nbytes:
                difference = f"{stored.get(name, 0)} bytes are there, {nbytes} were sent"
                raise OSError(5, difference, str(self.where / name))

    def manifest(self, data: bytes, kept: Collection[str]) -> bytes:
        """Return the manifest for the folder in which the objects are."""
        return data if self.where == self.goal else with_redirect(data, ABOVE, kept)

    def put_manifest(self, name: str, data: bytes) -> None:
        """Send the manifest, which completes the output; raises OSError if it did not arrive."""
        manifest = self.where / name
        from hashlib import md5  # reading needs none

        tag = put(manifest, data)
        # Most stores answer with the MD5 of what they received.
        if tag.strip('"') != md5(data, usedforsecurity=False).hexdigest() and (
            manifest.read_bytes() != data
        ):
            delete([manifest])
            raise OSError(5, "what is there is not what was sent", str(manifest))

    def finish(self) -> None:
        """Give the complete output its final name."""
        if self.where == self.goal:
            delete([self.goal / MARK])
            return
        self.find()
        whole = any(f"{self.where.name}/{name}" in self._there for name in MANIFESTS)
        if not whole or self._mark().get("token") != self.token:
            raise self._taken()
        mark = {"token": self.token, "moving": True, "over": self._over}
        put(self.goal / MARK, json.dumps(mark).encode())
        try:
            self._exchange(self.where, self._over)
        except FileExistsError:
            raise OutputError(
                f"{self.goal}: another run has changed it meanwhile, so nothing of this one was "
                "put in place; begin again"
            ) from None

    def withdraw(self) -> None:
        """Remove the objects that were sent."""
        if self.begun:
            delete(self.where / name for name in names_below(self.where))
            self.find()
            if self._mark().get("token") == self.token:
                delete([self.goal / MARK])

    def _exchange(self, stage: RemotePath, over: str | None) -> None:
        """Replace the former output by the complete one in `stage`; may be repeated.

        `over`: `current_tag` the former one's manifest.
        Raises FileExistsError: the former output is another one by now, and stays.
        """
        begin = f"{stage.name}/"
        staged = {name.removeprefix(begin) for name in self._there if name.startswith(begin)}
        for name in staged & set(MANIFESTS):  # one
            goal, whole = self.goal / name, (stage / name).read_bytes()
            kept_names, moved = set(read_redirect(whole)["names"]), staged - {name}
            during, after = (
                with_redirect(whole, stage.name, moved if kept_names else None),
                with_redirect(whole),
            )
            current = goal.read_bytes()
            if current not in (during, after):
                put(goal, during, over=over)
            self.is_done = True
            if current != after:
                self._move(stage, moved, all_is_new=not kept_names)
                put(goal, after)
            old = {existing for existing in self._there if not existing.startswith(STAGE)}
            delete(self.goal / existing for existing in old - moved - kept_names - {MARK, name})
        delete([self.goal / MARK])
        delete(stage / name for name in staged)

    def _move(self, stage: RemotePath, names: set[str], *, all_is_new: bool) -> None:
        """Copy objects to their final names; descriptions of arrays after all chunks.

        Programs that ignore our manifest meanwhile find fewer frames, or no arrays where all is
        new, but never a mixture of two outputs.
        """
        from concurrent.futures import ThreadPoolExecutor

        described = {key for key in {*names, *self._there} if key.rpartition("/")[2] in MANIFESTS}
        if all_is_new:
            delete(self.goal / key for key in described - set(MANIFESTS) if STAGE not in key)
        for batch in (names - described, names & described):
            with ThreadPoolExecutor(SENDERS) as pool:
                list(pool.map(lambda key: copy(stage / key, self.goal / key), batch))

    def _stage(self, token: str) -> RemotePath:
        return self.goal / f"{STAGE}{token}{self.goal.suffix}"

    @property
    def _manifests(self) -> list[str]:
        return [name for name in self._there if name in MANIFESTS]

    def _mark(self) -> dict[str, Any]:
        return self._read_mark() if MARK in self._there else {}

    def _read_mark(self) -> dict[str, Any]:
        """Return the mark; empty if it is not one of ours, since folder names come from it."""
        try:
            mark = json.loads((self.goal / MARK).read_bytes())
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        token = mark.get("token") if isinstance(mark, dict) else None
        return mark if isinstance(token, str) and TOKEN.fullmatch(token) else {}

    def _taken(self) -> OutputError:
        return OutputError(f"{self.goal}: another run has begun to write it meanwhile")
