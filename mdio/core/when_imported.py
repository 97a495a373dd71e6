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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # at run time it would bring importlib.resources, tempfile and random
    from importlib.abc import Loader, MetaPathFinder
else:
    Loader = MetaPathFinder = object


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
                    spec.loader = _WatchedLoader(spec.loader, self)
                return spec
        return None

    def stop_and_call(self) -> None:
        """Stop watching imports, and call the action."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self.action()


class _WatchedLoader(Loader):
    """Wraps the loader of the module, and notifies the watcher when that is loaded."""

    def __init__(self, loader: Loader, watcher: _Watcher) -> None:
        self.loader = loader
        self.watcher = watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.loader.exec_module(module)
        self.watcher.stop_and_call()
