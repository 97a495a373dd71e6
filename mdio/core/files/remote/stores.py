"""The stores that objects lie in: opened once in a process, and what they say in our words."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from mdio.core.errors import MissingExtraError

URL = re.compile(r"(s3|gs|az|https?)://([^/]*)", re.IGNORECASE)
TIMEOUT_S = 30
TRIES = 4
"""How often bytes are asked for whose answer broke off; obstore tries again what is refused."""
PAUSE_S = 0.2

Answer = TypeVar("Answer")

NO_BUCKET = "there is no such bucket; see its name, region and endpoint"
NO_RANGES = "the server gives no ranges of bytes; use one that does, or copy the file here"
NAMES_NO_BUCKET = re.compile(r"<Code>(NoSuchBucket|ContainerNotFound)</Code>")
REFUSED = re.compile(
    r"\b40[13] (Forbidden|Unauthorized)|InvalidAccessKeyId|SignatureDoesNotMatch|UserNotFound"
    r"|AuthorizationHeaderMalformed"
)
REGION = re.compile(r"<Region>([\w-]+)<")

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
            errno.ENOTSUP,
            "this process was forked from one that had read from stores, and would wait for ever; "
            "start processes with 'spawn' or 'forkserver': multiprocessing.set_start_method",
            str(path),
        )
    text = str(path)
    match = URL.match(text)
    assert match is not None
    store = _store(text[: match.end()], os.getpid())
    _pid = os.getpid()
    return store, text[match.end() :].lstrip("/")


@contextmanager
def naming_errors(path: Path) -> Iterator[None]:
    """Turn errors of obstore into OSError, without what their texts may give away.

    PermissionError: what no further try would mend.
    """
    from obstore import exceptions

    try:
        yield
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        raise FileExistsError(17, "there is another one by now", str(path)) from None
    except (FileNotFoundError, exceptions.BaseError) as error:
        text = str(error)  # errors of lists have no kind
        if NAMES_NO_BUCKET.search(text):
            raise PermissionError(13, NO_BUCKET, str(path)) from None
        kinds = exceptions.PermissionDeniedError, exceptions.UnauthenticatedError
        if isinstance(error, kinds) or REFUSED.search(text):
            there = REGION.search(text)
            hint = f" (it is in {there[1]})" if there else ""
            said = f"the store refuses it; see credentials, region{hint} and endpoint"
            raise PermissionError(13, said, str(path)) from None
        if "Range request not supported" in text:
            raise PermissionError(13, NO_RANGES, str(path)) from None
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(2, "no such object", str(path)) from None
        text = text.split("\n")[0].split(" - ", 1)[-1]
        text = re.sub(r"\S*://\S+", "the store", text)[:200]
        if "error sending request" in text:
            text = f"the store cannot be reached ({text}); see endpoint and network"
        raise OSError(5, text or type(error).__name__, str(path)) from None


def patiently(path: Path, call: Callable[[], Answer]) -> Answer:
    """Return what a request gives, which is made again if its answer breaks off; raises OSError."""
    for attempt in range(TRIES):
        try:
            with naming_errors(path):
                return call()
        except (FileNotFoundError, PermissionError):
            raise
        except OSError:
            if attempt == TRIES - 1:
                raise
            time.sleep(PAUSE_S * 2**attempt)
    raise AssertionError
