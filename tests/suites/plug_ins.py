"""Classes of a test as those of another distribution."""

from importlib import metadata


def install_plug_ins(monkeypatch, group: str, classes: dict[str, type]) -> None:
    """Let entry points of `group` be these classes alone, by name."""
    points = [
        metadata.EntryPoint(name, f"{one.__module__}:{one.__name__}", group)
        for name, one in classes.items()
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
