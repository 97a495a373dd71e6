"""Requests that change what is in a store."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mdio.core.files.remote import objects, stores
from mdio.core.files.remote.paths import RemotePath
from mdio.core.files.remote.stores import NO_BUCKET, naming_errors, store_of

PART_NBYTES = 8 << 20
"""Larger files are sent in parts of this size, several at a time; there is nothing under their name
before all have come."""
PARTS = 8
CONDITIONAL_NBYTES = 64 << 20
"""Conditions are of requests that send all of an object, which is to be done in a short time."""


def tag_of(target: RemotePath) -> str | None:
    """Return by what the object of a name is known now (its ETag and version); None if none is."""
    objects.forget(target)
    found = objects.look(target)
    return None if found is None else found.state.tag


def put(
    target: RemotePath,
    data: bytes | Path,
    *,
    new: bool = False,
    over: str | None = None,
    looked: bool = False,
) -> str:
    """Send some bytes, or those of a file, as an object; it is there whole or not at all.

    Returns its ETag, as far as it is known.

    `target`: its name. `data`: what it is to hold. `new`: refuse where there is an object of this
    name. `over`: refuse where there is another one than had this `tag_of`. That is looked at before
    the first try, and is a condition of the request, where the store has conditions and a file
    is not so large that it goes in parts. `looked`: the caller has just looked.
    Raises FileExistsError: with `new` or `over`: there is another one. OSError: the store does not
    take it, after `stores.TRIES` tries.
    """
    import obstore
    from obstore.exceptions import NotSupportedError

    store, name = store_of(target)
    large = isinstance(data, Path) and data.stat().st_size > CONDITIONAL_NBYTES
    mode: Any = "overwrite"
    if new or over is not None:
        if not looked and tag_of(target) != over:
            raise FileExistsError(17, "there is another one by now", str(target))
        if not large:
            tag, _, version = (over or "").partition(" ")
            mode = {"e_tag": tag} | ({"version": version} if version else {}) if over else "create"
    in_parts = None if isinstance(data, Path) and mode == "overwrite" else False
    for attempt in range(stores.TRIES):
        try:
            with naming_errors(target):
                try:
                    found = obstore.put(
                        store,
                        name,
                        data,
                        mode=mode,
                        use_multipart=in_parts,
                        chunk_size=PART_NBYTES,
                        max_concurrency=PARTS,
                    )
                except (NotSupportedError, NotImplementedError):
                    if mode == "overwrite" or tag_of(target) != over:
                        raise
                    mode = "overwrite"
                    continue
            return str(found["e_tag"] or "")
        except FileExistsError:
            # Of a try whose answer was lost, it is ours.
            if attempt and _holds(target, data):
                return ""
            raise
        except PermissionError:
            raise
        except OSError as error:
            if isinstance(data, Path) and not data.exists():
                raise FileNotFoundError(2, "it is gone", str(data)) from error
            if attempt == stores.TRIES - 1:
                if isinstance(error, FileNotFoundError):
                    raise OSError(2, NO_BUCKET, str(target)) from None
                raise  # of parts, what is not found may be those of a try whose answer was lost
            time.sleep(stores.PAUSE_S * 2**attempt)
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

    store, name = store_of(source)
    stores.patiently(source, lambda: obstore.copy(store, name, store_of(target)[1]))
    objects.forget(target)


def delete(targets: Iterable[RemotePath]) -> None:
    """Remove objects; those that are not there are none. Raises OSError."""
    import obstore

    paths = list(targets)
    for path in paths:
        objects.forget(path)
    if paths:
        store = store_of(paths[0])[0]
        with naming_errors(paths[0]):
            try:
                obstore.delete(store, [store_of(path)[1] for path in paths])
            except FileNotFoundError:
                for path in paths:  # some stores take one that is not there for an error
                    try:
                        obstore.delete(store, store_of(path)[1])
                    except FileNotFoundError:
                        continue


def names_below(folder: RemotePath) -> dict[str, int]:
    """Return the names of all objects below `folder`, relative to it, and their bytes.

    Raises OSError: the store does not list them.
    """
    import obstore

    store, name = store_of(folder)
    try:
        found = stores.patiently(
            folder, lambda: [one for some in obstore.list(store, f"{name}/") for one in some]
        )
    except OSError as error:
        if "404 Not Found" in str(error.strerror):  # errors of lists have no kind
            raise OSError(2, NO_BUCKET, str(folder)) from None
        raise
    return {one["path"][len(name) + 1 :]: one["size"] for one in found}
