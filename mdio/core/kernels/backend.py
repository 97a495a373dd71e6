"""The compiled modules, without which mdio does not work."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from mdio.core.errors import MissingExtensionError

__all__ = ["import_compiled", "module"]


def import_compiled(name: str) -> ModuleType:
    """Import a compiled module; raises MissingExtensionError."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtensionError(
            f"{name}, a compiled part of mdio, cannot be imported ({error}); install a wheel of "
            "mdio, or a C++ compiler (g++) and then mdio again (in a checkout: make install)"
        ) from error


if TYPE_CHECKING:
    from mdio import _kernels as module
else:
    module = import_compiled("mdio._kernels")
