"""Which module the kernels run in: the compiled one, or NumPy where there is none.

``MDIO_PURE_PYTHON=1`` in the environment turns the compiled one off.
"""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["NATIVE", "module"]


def _choose() -> tuple[ModuleType, bool]:
    plain = "mdio.core.kernels.plain"
    if os.environ.get("MDIO_PURE_PYTHON", "0") not in ("", "0"):
        return import_module(plain), False
    try:
        return import_module("mdio._kernels"), True
    except ImportError:  # installed without a compiler
        warnings.warn(
            "mdio was installed without a C++ compiler: everything works, but reading, converting "
            "and analysing are several times slower, and quantised positions may take more room; "
            "install a compiler (g++), then mdio again",
            RuntimeWarning,
            stacklevel=2,
        )
        return import_module(plain), False


if TYPE_CHECKING:  # the two have the same functions
    from mdio import _kernels as module

    NATIVE: bool
else:
    module, NATIVE = _choose()
