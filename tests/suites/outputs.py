"""What is in an output, byte for byte, and how it is asked for."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mdio.converters.options import OPTIONS, ConversionOptions
from mdio.core.options import declared_fields


def as_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by name as `mdio.convert` takes them: storage and selection as objects."""
    others = {name: options[name] for name in options.keys() - declared_fields(*OPTIONS).keys()}
    return others | ConversionOptions.of(**options).keywords()


def contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return {str(p.relative_to(path)): p.read_bytes() for p in files}
