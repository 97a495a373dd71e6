"""Outputs in stores: requests that write, marks of running writers, and replacing an output.

A store cannot rename, so only the manifest of an output can be replaced in one step. The objects of
a new output are sent into a folder inside the former one (the stage), where its manifest redirects
to the folder above for objects that both outputs share. Then the manifest above is replaced by one
that redirects to the stage, until the store has copied the objects to their final names.
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
from mdio.core.files import checks
from mdio.core.files.checks import OWN_NAMES, check_no_foreign_files, manifest_in, with_checksum
from mdio.core.files.remote import objects
from mdio.core.files.remote.objects import NO_BUCKET, find, store_and_name, translated_errors
from mdio.core.files.remote.paths import MANIFESTS, RemotePath

REDIRECT_KEY = "elsewhere"
STAGE = "mdio-new-"
"""Prefix of the name of a stage."""
ABOVE = ".."
"""The folder in the redirect of a stage's manifest: the one that the stage is in."""
SHARED_NS, SENT_NS = 0, 10**9
"""Modification times of placeholder files, which no other file has."""


class Redirect:
    """The folder to which an output's `manifest` redirects for some or all objects."""

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        value = manifest.get(REDIRECT_KEY)
        redirect = value if isinstance(value, dict) else {}
        name, names = str(redirect.get("folder", "")), redirect.get("names")
        self.folder = folder
        self._other_folder: Path | None = None
        if name == ABOVE and folder.name.startswith(STAGE):
            self._other_folder = folder.parent
        elif name.startswith(STAGE) and "/" not in name:
            self._other_folder = folder / name
        self._names = frozenset(map(str, names)) if isinstance(names, list) else None

    def path_of(self, name: str) -> Path:
        """Return the present path of an object: where the manifest redirects, or its final one."""
        if self._other_folder is None or (self._names is not None and name not in self._names):
            return self.folder / name
        candidate = self._other_folder / name
        if isinstance(candidate, RemotePath) and find(candidate) is None:
            return self.folder / name
        return candidate


def make_placeholder(target: Path, nbytes: int, *, sent: bool = False) -> None:
    """Create a file without contents (a hole) that stands for an object of `nbytes`.

    `sent`: whether the object was sent for the new output; else the former output shares it.
    """
    with target.open("wb") as file:
        file.truncate(nbytes)
    os.utime(target, ns=(0, SENT_NS if sent else SHARED_NS))


def is_shared_placeholder(status: os.stat_result) -> bool:
    """Return whether a file is the placeholder of an object that both outputs share."""
    return status.st_mtime_ns == SHARED_NS


def is_sent_placeholder(file: Path) -> bool:
    """Return whether a file is the placeholder of an object that was sent."""
    with suppress(FileNotFoundError):
        return file.stat().st_mtime_ns == SENT_NS
    return False


def read_redirect(text: bytes) -> Any:
    """Return the redirect of a manifest; None if it has none."""
    return _manifest(json.loads(text)).get(REDIRECT_KEY)


def with_redirect(text: bytes, folder: str = "", names: Collection[str] | None = None) -> bytes:
    """Return a manifest that redirects `names` (None = all) to `folder`; "" = no redirect."""
    node = json.loads(text)
    manifest = _manifest(node)
    manifest.pop(REDIRECT_KEY, None)
    if folder:
        manifest[REDIRECT_KEY] = {
            "folder": folder,
            "names": None if names is None else sorted(names),
        }
    checksummed = with_checksum(manifest)
    manifest.clear()
    manifest.update(checksummed)
    return json.dumps(node).encode()


def _manifest(node: dict[str, Any]) -> dict[str, Any]:
    manifest: dict[str, Any] = node["attributes"][checks.FORMAT] if "attributes" in node else node
    return manifest


PART_NBYTES = 8 << 20
"""Larger files are sent in parts of this size; the last one completes the object."""
MAX_PARTS_IN_FLIGHT = 8
MAX_CONDITIONAL_NBYTES = 64 << 20
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
    must_be_new: bool = False,
    replaces: str | None = None,
    is_checked: bool = False,
) -> str:
    """Send bytes, or a file, as an object, which appears complete or not at all; return its ETag.

    `must_be_new`: only if no object has this name. `replaces`: only over the object with this tag.
    Either is checked before the first try, and is a condition of the request too, if the store has
    conditions and the file is not so large that it is sent in parts. `is_checked`: the caller has
    just checked it.
    Raises FileExistsError: another object has the name. OSError: the store refuses the request, or
    all of `objects.MAX_TRIES` tries have failed.
    """
    import obstore
    from obstore.exceptions import NotSupportedError

    store, name = store_and_name(target)
    is_large = isinstance(data, Path) and data.stat().st_size > MAX_CONDITIONAL_NBYTES
    mode: Any = "overwrite"
    if must_be_new or replaces is not None:
        if not is_checked and current_tag(target) != replaces:
            raise FileExistsError(17, "another object has this name by now", str(target))
        if replaces and not is_large:
            tag, _, version = replaces.partition(" ")
            mode = {"e_tag": tag} | ({"version": version} if version else {})
        elif not is_large:
            mode = "create"
    in_parts = None if isinstance(data, Path) and mode == "overwrite" else False
    for attempt in range(objects.MAX_TRIES):
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
                        max_concurrency=MAX_PARTS_IN_FLIGHT,
                    )
                except (NotSupportedError, NotImplementedError):
                    if mode == "overwrite" or current_tag(target) != replaces:
                        raise
                    mode = "overwrite"
                    continue
            return str(answer["e_tag"] or "")
        except FileExistsError:
            # After a try whose answer was lost, the object may be ours.
            if attempt and _has_contents(target, data):
                return ""
            raise
        except PermissionError:
            raise
        except OSError as error:
            if isinstance(data, Path) and not data.exists():
                raise FileNotFoundError(2, "the file does not exist any more", str(data)) from error
            if attempt == objects.MAX_TRIES - 1:
                if isinstance(error, FileNotFoundError):
                    raise OSError(2, NO_BUCKET, str(target)) from None
                raise  # perhaps after a try whose answer was lost completed the upload of parts
            time.sleep(objects.PAUSE_S * 2**attempt)
        finally:
            objects.forget(target)
    raise AssertionError


def _has_contents(target: RemotePath, data: bytes | Path) -> bool:
    """Return whether an object has these contents."""
    objects.forget(target)
    try:
        return target.read_bytes() == (data if isinstance(data, bytes) else data.read_bytes())
    except OSError:
        return False


def copy(source: RemotePath, target: RemotePath) -> None:
    """Have the store copy an object, replacing one that has the name; raises OSError."""
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
                for path in paths:  # some stores delete none if one is missing
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


MARK_NAME = "mdio-unfinished.json"
"""The object that says which run is writing an output."""
TOKEN = re.compile("[0-9a-f]{16}")
OWN_OBJECTS = re.compile(
    rf"({'|'.join(OWN_NAMES.values())}|{STAGE}{TOKEN.pattern}[^/]*)(/.*)?|{re.escape(MARK_NAME)}|\..*"
)
"""Names of objects below an output of mdio's layouts; of hidden ones, all."""
MAX_SEND_THREADS = 8
"""Objects sent, or copied, at the same time."""
MAX_SMALL_SEND_THREADS, SMALL_NBYTES = 32, 1 << 20
"""The same for objects up to this size, for which most of the time is waiting for the answer."""


def run_concurrently(*calls: Callable[[], Any]) -> list[Any]:
    """Return the results of calls that run in threads at the same time; raises the first error."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def recover(target: Path) -> None:
    """Finish an exchange that a dead run has begun; raises OSError."""
    if isinstance(target, RemotePath) and not str(target).lower().startswith("http"):
        output = StoredOutput(target)
        output.list_objects()
        output.recover()


class StoredOutput:
    """An output in a store, its objects, and the mark of the run that writes them.

    `target`: the URL. Attributes: `token`: of the run that writes there. `destination`: the folder
    to which objects are sent: the target, or a stage. `is_marked`: whether the target is marked as
    being written by this run. `is_published`: whether the output has its final name, though objects
    may have to be copied yet.
    """

    def __init__(self, target: RemotePath) -> None:
        self.target = self.destination = target
        self.token = os.urandom(8).hex()
        self.is_marked = self.is_published = False
        self._existing_nbytes: dict[str, int] = {}
        """Bytes of each object below the target, by relative name."""
        self._former_tag: str | None = None
        """The `current_tag` of the former output or of its manifest."""

    def list_objects(self) -> None:
        """List the objects that exist now."""
        self._existing_nbytes = names_below(self.target)

    def recover(self) -> None:
        """Finish an exchange that a dead run has begun."""
        mark = self._listed_mark()
        if mark.get("moving"):
            self._check_no_foreign_files()
            stage = self._stage(mark["token"])
            try:
                self._exchange(stage, mark.get("over"))
            except FileExistsError:  # another run has replaced the output since
                delete([self.target / MARK_NAME])
                delete(
                    self.target / name
                    for name in self._existing_nbytes
                    if name.startswith(stage.name)
                )
            self.list_objects()
            self.is_published = False

    def prepare(self, *, replace: bool, discard: bool, resumed_token: str | None) -> bool:
        """List the existing objects, and remove those of a dead run; return whether one is resumed.

        `replace`: whether a former output may be replaced. `discard`: whether objects of an
        unfinished run may be removed. `resumed_token`: of the run to resume, if any.
        Raises OutputError: the existing objects must not be replaced.
        """
        _, is_object = run_concurrently(self.list_objects, self.target.is_object)
        self.recover()
        mark = self._listed_mark()
        is_object = is_object and not self._manifests
        if not replace and (self._manifests or is_object):
            raise OutputError(
                f"{self.target}: it exists already; choose another name or use --force"
            )
        if self._existing_nbytes and not mark and manifest_in(self.target) is None:
            raise OutputError(
                f"{self.target}: there are objects below it that mdio did not write; remove them "
                "yourself or choose another name"
            )
        resumes = bool(mark) and resumed_token == mark.get("token")
        if resumes:
            self.token, self.is_marked = mark["token"], True
        elif mark and not discard:
            raise OutputError(
                f"{self.target}: an output that was begun {mark.get('begun')} is not finished "
                "there; if nobody is writing it any more, give --resume where it was begun to "
                "continue it, or --force to start again"
            )
        self.destination = self._stage(self.token) if self._manifests else self.target
        self._check_no_foreign_files()
        if self._manifests or is_object:
            self._former_tag = current_tag(
                self.target / self._manifests[0] if self._manifests else self.target
            )
        if not resumes:
            shared_names = {
                name for name in self._existing_nbytes if STAGE not in name and self._manifests
            }
            removed = self._existing_nbytes.keys() - (shared_names - {MARK_NAME})
            delete(self.target / name for name in _own_names(removed))
        return resumes

    def new_names(self) -> dict[str, int]:
        """Return the bytes of each stored object of the new output, by name."""
        prefix = "" if self.destination == self.target else f"{self.destination.name}/"
        sizes = self._existing_nbytes.items()
        return {name.removeprefix(prefix): n for name, n in sizes if name.startswith(prefix)}

    def mark(self) -> None:
        """Mark the folder as being written; raises OutputError if another run has done so."""
        if self.target.is_object():
            raise OutputError(f"{self.target}: an object, not a folder; remove it yourself")
        now_text = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        mark = {"token": self.token, "begun": now_text}
        try:
            put(
                self.target / MARK_NAME,
                json.dumps(mark).encode(),
                must_be_new=True,
                is_checked=True,
            )
        except FileExistsError:
            raise self._other_run_error() from None
        if self.destination == self.target:
            self.list_objects()
            if self._manifests:
                delete([self.target / MARK_NAME])
                raise OutputError(
                    f"{self.target}: it appeared while this was written; nothing was replaced"
                )
        self.is_marked = True

    def check_mark(self) -> None:
        """Raise OutputError if the folder is no longer marked as being written by this run."""
        if self._read_mark().get("token") != self.token:
            raise self._other_run_error()

    def put_object(self, data: Path, *, only_unchanged: bool) -> None:
        """Send a file as the object `target`, and check its size.

        `only_unchanged`: only if the object there, or its absence, is as when the run began.
        """
        if self._existing_nbytes:
            raise OutputError(f"{self.target}: a folder, not an object; remove it yourself")
        tag = self._former_tag if only_unchanged else None
        try:
            put(self.target, data, replaces=tag, must_be_new=only_unchanged and not tag)
        except FileExistsError:
            raise self._other_run_error() from None
        self._check_sizes({"": self.target.stat().st_size}, {"": data.stat().st_size})

    def check_sizes(self, expected: Mapping[str, int], shared: Mapping[str, int]) -> set[str]:
        """Check the sizes of the objects sent for this output; return the names of all others.

        `expected`, `shared`: bytes by name of objects that were sent, and of those that both
        outputs share. Raises OSError: one is missing, or has another size. OutputError: another run
        writes there.
        """
        self.list_objects()
        stored = (
            self._existing_nbytes
            if self.destination == self.target
            else names_below(self.destination)
        )
        try:
            self._check_sizes(stored, expected)
            self._check_sizes(self._existing_nbytes, shared)
        except OSError:
            self.check_mark()
            raise
        return stored.keys() - expected.keys() - {MARK_NAME}

    def remove(self, names: Iterable[str]) -> None:
        """Delete objects that were sent, but are not of this output; raises as `check_mark`."""
        self.check_mark()
        delete(self.destination / name for name in _own_names(names))

    def _check_sizes(self, stored: Mapping[str, int], expected: Mapping[str, int]) -> None:
        for name, nbytes in expected.items():
            if stored.get(name) != nbytes:
                difference = f"{stored.get(name, 0)} bytes are there, {nbytes} were sent"
                raise OSError(5, difference, str(self.destination / name))

    def manifest(self, data: bytes, shared: Collection[str]) -> bytes:
        """Return the manifest for `destination`, which redirects to `target` for `shared` ones."""
        return data if self.destination == self.target else with_redirect(data, ABOVE, shared)

    def put_manifest(self, name: str, data: bytes) -> None:
        """Send the manifest, which completes the output; raises OSError if it did not arrive."""
        manifest = self.destination / name
        from hashlib import md5  # reading needs none

        tag = put(manifest, data)
        # Most stores answer with the MD5 of what they received.
        if tag.strip('"') != md5(data, usedforsecurity=False).hexdigest() and (
            manifest.read_bytes() != data
        ):
            delete([manifest])
            raise OSError(5, "the stored object is not what was sent", str(manifest))

    def finish(self) -> None:
        """Give the complete output its final name."""
        if self.destination == self.target:
            delete([self.target / MARK_NAME])
            return
        self.list_objects()
        is_complete = any(
            f"{self.destination.name}/{name}" in self._existing_nbytes for name in MANIFESTS
        )
        if not is_complete or self._listed_mark().get("token") != self.token:
            raise self._other_run_error()
        self._check_no_foreign_files()
        mark = {"token": self.token, "moving": True, "over": self._former_tag}
        put(self.target / MARK_NAME, json.dumps(mark).encode())
        try:
            self._exchange(self.destination, self._former_tag)
        except FileExistsError:
            raise OutputError(
                f"{self.target}: another run has changed it meanwhile, so this one has not "
                "replaced it; run it again"
            ) from None

    def remove_sent(self) -> None:
        """Remove the objects that were sent, and the mark; none that are another run's by now."""
        if self.is_marked:
            self.list_objects()
            is_ours = self._listed_mark().get("token") == self.token
            if is_ours or self.destination != self.target:
                delete(self.destination / name for name in _own_names(self.new_names()))
            if is_ours:
                delete([self.target / MARK_NAME])

    def _exchange(self, stage: RemotePath, former_tag: str | None) -> None:
        """Replace the former output, of the tag `former_tag`, by that in `stage`; may be repeated.

        Raises FileExistsError: another run has replaced the former output, which stays.
        """
        prefix = f"{stage.name}/"
        staged_names = {
            name.removeprefix(prefix) for name in self._existing_nbytes if name.startswith(prefix)
        }
        for name in staged_names & set(MANIFESTS):  # just one
            manifest, staged_text = self.target / name, (stage / name).read_bytes()
            shared_names, new_names = (
                set(read_redirect(staged_text)["names"]),
                staged_names - {name},
            )
            redirecting_text = with_redirect(
                staged_text, stage.name, new_names if shared_names else None
            )
            final_text = with_redirect(staged_text)
            current_text = manifest.read_bytes()
            if current_text not in (redirecting_text, final_text):
                put(manifest, redirecting_text, replaces=former_tag)
            self.is_published = True
            if current_text != final_text:
                self._move(stage, new_names, replaces_all=not shared_names)
                put(manifest, final_text)
            old_names = {key for key in self._existing_nbytes if not key.startswith(STAGE)}
            old_names -= new_names | shared_names | {MARK_NAME, name}
            delete(self.target / key for key in old_names)
        delete([self.target / MARK_NAME])
        delete(stage / name for name in staged_names)

    def _move(self, stage: RemotePath, names: set[str], *, replaces_all: bool) -> None:
        """Copy objects to their final names; metadata of arrays after all chunks.

        Programs that ignore our manifest meanwhile find fewer frames, or no arrays if
        `replaces_all`, but never a mixture of two outputs.
        """
        from concurrent.futures import ThreadPoolExecutor

        metadata = {
            key for key in {*names, *self._existing_nbytes} if key.rpartition("/")[2] in MANIFESTS
        }
        if replaces_all:
            delete(self.target / key for key in metadata - set(MANIFESTS) if STAGE not in key)
        for batch in (names - metadata, names & metadata):
            with ThreadPoolExecutor(MAX_SEND_THREADS) as pool:
                list(pool.map(lambda key: copy(stage / key, self.target / key), batch))

    def _stage(self, token: str) -> RemotePath:
        return self.target / f"{STAGE}{token}{self.target.suffix}"

    @property
    def _manifests(self) -> list[str]:
        return [name for name in self._existing_nbytes if name in MANIFESTS]

    def _check_no_foreign_files(self) -> None:
        """Raise OutputError if the former output's folder holds objects of others."""
        if self._manifests:
            names = {
                key.partition("/")[0] for key in self._existing_nbytes if not key.startswith(STAGE)
            }
            check_no_foreign_files(self.target, names - {MARK_NAME})

    def _listed_mark(self) -> dict[str, Any]:
        """Return the mark if the objects that were listed last have one; else an empty one."""
        return self._read_mark() if MARK_NAME in self._existing_nbytes else {}

    def _read_mark(self) -> dict[str, Any]:
        """Return the mark; empty unless its token, part of a folder's name, is one of ours."""
        objects.forget(self.target / MARK_NAME)
        try:
            mark = json.loads((self.target / MARK_NAME).read_bytes())
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
        token = mark.get("token") if isinstance(mark, dict) else None
        return mark if isinstance(token, str) and TOKEN.fullmatch(token) else {}

    def _other_run_error(self) -> OutputError:
        return OutputError(f"{self.target}: another run has begun to write it meanwhile")


def _own_names(names: Iterable[str]) -> list[str]:
    """Return those of the names of objects below an output that mdio gives."""
    return [name for name in names if OWN_OBJECTS.fullmatch(name)]
