"""Call a function once another module is imported.

``import mdio`` has to register its readers with MDAnalysis, whose import takes 1.4 s: too long for
programs that do without. So readers are registered at once if it is imported already, else right
after it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # at run time it would bring importlib.resources, tempfile and random
    from importlib.abc import Loader, MetaPathFinder
else:
    MetaPathFinder = object


def when_imported(module: str, action: Callable[[], object]) -> None:
    """Call `action` once `module` (a top-level name) is imported; now if it is already."""
    if module in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Watcher(module, action))


class _Watcher(MetaPathFinder):
    """Finds the module by the other finders, and has its loader call back."""

    def __init__(self, module: str, action: Callable[[], object]) -> None:
        self.module = module
        self.action = action

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.module or self not in sys.meta_path:
            return None
        # Stays until the module is loaded: a caller may want the spec alone.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    self._watch(spec.loader)
                return spec
        return None

    def _watch(self, loader: Loader) -> None:
        """Have `loader` call the action when it has loaded the module."""
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # the method of its class again
            load(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.action()

        loader.exec_module = exec_module  # type: ignore[method-assign]
