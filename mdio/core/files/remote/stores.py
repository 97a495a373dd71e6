"""The stores that objects lie in: opened once in a process, and what they say in our words."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from mdio.core.errors import MissingExtraError

URL = re.compile(r"(s3|gs|az|https?)://([^/]*)", re.IGNORECASE)
TIMEOUT_S = 30

REFUSED = re.compile(r"\b40[13] (Forbidden|Unauthorized)|InvalidAccessKeyId|SignatureDoesNotMatch")

_pid = 0
"""The process in which obstore has threads."""


def threads_would_be_lost() -> bool:
    """Return whether this process has threads of obstore, which a forked one would wait for."""
    return _pid == os.getpid()


@lru_cache(maxsize=64)
def _store(root: str, process: int) -> Any:  # noqa: ARG001
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise MissingExtraError(
            f"{root}: reading it needs obstore: pip install 'mdio-layouts[cloud]'"
        ) from error
    return from_url(
        root,
        client_options={"allow_http": True, "timeout": f"{TIMEOUT_S}s", "connect_timeout": "10s"},
        retry_config={"max_retries": 5, "retry_timeout": timedelta(seconds=TIMEOUT_S)},
    )


def store_of(path: Path) -> tuple[Any, str]:
    """Return store and name of an object."""
    global _pid
    if _pid not in (0, os.getpid()):
        raise OSError(
            "the process that reads it was forked from one that had read from stores, which waits "
            "for ever; start processes with 'spawn' or 'forkserver'"
        )
    text = str(path)
    match = URL.match(text)
    assert match is not None
    store = _store(text[: match.end()], os.getpid())
    _pid = os.getpid()
    return store, text[match.end() :].lstrip("/")


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turn errors of obstore into OSError, without what their texts may give away."""
    from obstore import exceptions

    refused = PermissionError(
        13, "the store refuses it; see credentials, region and endpoint", str(path)
    )
    try:
        yield
    except FileNotFoundError as error:
        if REFUSED.search(str(error)):
            raise refused from None
        raise FileNotFoundError(2, "no such object", str(path)) from None
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        raise FileExistsError(17, "there is another one by now", str(path)) from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
        raise refused from None
    except exceptions.BaseError as error:
        if REFUSED.search(str(error)):  # of lists, whose errors have no kind
            raise refused from None
        text = str(error).split("\n")[0].split(" - ", 1)[-1]
        text = re.sub(r"\S*://\S+", "the store", text)[:200]
        raise OSError(5, text or type(error).__name__, str(path)) from None
