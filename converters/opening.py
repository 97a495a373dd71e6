"""Opening sources again, and those that are damaged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.converters.periodic import TransformedLayout
from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.files.fingerprint import contents_of, fingerprint
from mdio.core.files.store import AnyPath, Paths, path_list
from mdio.core.words import number_text
from mdio.layouts.base import Layout
from mdio.layouts.manifest import indices_from_runs
from mdio.layouts.registry import open_layout
from mdio.layouts.views import KEEP_ALL
from mdio.layouts.views.chain import chain_parts
from mdio.layouts.views.joining import ROUNDING, Joining, parts_of
from mdio.layouts.views.view import ViewLayout


def source_open_options(layout: Layout) -> dict[str, Any]:
    """Return how the files of the source are opened and joined, to be what `layout` holds."""
    if layout.manifest is None:
        return {}
    source = layout.manifest["source"]
    # Parts that are given in place of one file are joined as by default.
    joined = source.get("joined") or ({"overlap": KEEP_ALL} if "files" in source else {})
    joining_options = {"overlap": KEEP_ALL if "matched" in joined else joined.get("overlap")}
    joining_options |= source.get("opened", {})
    return (
        joining_options | {"salvage": True}
        if {"unreadable_frames", "lost"} & source.keys()
        else joining_options
    )


def in_recorded_order(layout: Layout, files: Paths) -> list[AnyPath]:
    """Return the files of the source in the order of the manifest, which may be given in another.

    Further ones are left out. They stay as given if the manifest has others.
    """
    paths = path_list(files)
    return paths if len(paths) < 2 else recorded_files(layout, by_contents(paths)) or paths


def by_contents(paths: list[AnyPath]) -> dict[str, AnyPath]:
    """Return files by their contents, as manifests record them; raises SourceError: none there."""
    return {str(contents_of(fingerprint(path))): path for path in paths}


def recorded_files(layout: Layout, given: dict[str, AnyPath]) -> list[AnyPath]:
    """Return the files of the source among those of `by_contents`; none where one is missing."""
    source = (layout.manifest or {}).get("source", {})
    recorded = [str(contents_of(state)) for state in source.get("files", [source])]
    return [given[one] for one in recorded] if set(recorded) <= given.keys() else []


def open_damaged(path: str | PathLike[str]) -> Layout:
    """Open a trajectory; if it is damaged, so that frames behind the damage are found too."""
    layout = open_layout(path)
    try:
        _ = layout.info
    except CorruptLayoutError:
        raise
    except SourceError:
        layout = open_layout(path, salvage=True)
        _ = layout.info
    return layout


@contextmanager
def salvage_offered(salvage: bool) -> Iterator[None]:
    """Add to the error of a damaged source that ``salvage`` reads the rest, unless it is set."""
    try:
        yield
    except SourceError as error:
        if salvage or "damaged" not in str(error):
            raise
        raise SourceError(
            f"{error}; add --salvage (salvage=True) to take the frames that can be read "
            "(`mdio verify` lists the others)"
        ) from error


def source_view(layout: Layout, source: Layout, top: str | PathLike[str] | None) -> ViewLayout:
    """Return the frames and atoms of the source that `layout` should hold.

    Those that a program wrote are not among them; see `with_own_frames`.
    """
    manifest = layout.manifest
    frames: Any = None
    atoms = None
    unreadable = None
    transformed: Layout = source

    def transform(source: Layout) -> Layout:
        """Return a source with its frames transformed as by the conversion."""
        options = (manifest or {"source": {}})["source"].get("transformed")
        if options is None:
            return source
        layout = TransformedLayout(source.path, source=source, top=top, **options)
        layout.prepare_steps(atoms)
        return layout

    if manifest is not None:
        unreadable = manifest["source"].get("unreadable_frames")
        runs = manifest["frames"]
        frames = range(*runs[0]) if len(runs) == 1 else indices_from_runs(runs)
        atoms = None if manifest["atoms"] is None else indices_from_runs(manifest["atoms"])
        transformed = transform(source)
        matched = (manifest["source"].get("joined") or {}).get("matched")
        if matched is not None:
            n_source = source.info.n_frames
            intact = np.setdiff1d(np.arange(n_source), indices_from_runs(unreadable or []))
            view = ViewLayout(source.path, source=transformed, frames=intact, atoms=atoms)
            frames = intact[_matching(layout, view, matched)]
            source = _chosen(source, frames)  # whose bytes can be copied, as they were
            transformed, frames = transform(source), None
    info = source.info
    last = -1 if frames is None or not len(frames) else int(max(frames[0], frames[-1]))
    if last >= info.n_frames or (atoms is not None and atoms.max(initial=-1) >= info.n_atoms):
        raise SourceError(
            f"{source.path} has {info.n_frames} frames of {info.n_atoms} atoms, so {layout.path} "
            f"({layout.info.n_frames} of {layout.info.n_atoms}) was not made from it; give the "
            "trajectory that it was made from"
        )
    return ViewLayout(
        source.path, source=transformed, frames=frames, atoms=atoms, unreadable=unreadable
    )


def by_program(layout: Layout) -> NDArray[np.int64]:
    """Return the numbers of frames that a program wrote, and no file of the source has."""
    source = (layout.manifest or {}).get("source", {})
    return indices_from_runs(source.get("by_program", []))


def with_own_frames(layout: Layout, view: ViewLayout) -> ViewLayout:
    """Return a `source_view` with all frames of `layout`: its own where a program wrote them."""
    is_own = np.zeros(layout.info.n_frames, np.int64)
    is_own[by_program(layout)] = 1
    if not is_own.any():
        return view
    frames = np.where(is_own, np.arange(len(is_own)), np.cumsum(1 - is_own) - 1)
    joining = Joining(tuple(parts_of(is_own, frames)), changes=True)
    return ViewLayout(view.path, source=chain_parts([view, open_layout(layout.path)], joining))


def _matching(layout: Layout, source: ViewLayout, key: str) -> NDArray[np.int64]:
    """Return for each frame of `layout` from files its number there, put one after the other.

    `key`: by what they are matched: ``ps`` or ``steps``. Where several files have a frame
    of the same time, it is the one with the contents that come next to those of the output.
    Raises SourceError: there is none.
    """
    keys, source_keys = (_keys(one, key) for one in (layout, source))
    numbers = np.setdiff1d(np.arange(len(keys)), by_program(layout))
    keys = keys[numbers]
    order = np.argsort(source_keys, kind="stable")
    source_keys = source_keys[order]
    slack = np.zeros(len(keys))
    if key == "ps":
        spacing = np.diff(keys).min(initial=np.inf)
        slack = np.minimum(ROUNDING * np.abs(keys), spacing / 4)
    begin, end = (
        np.searchsorted(source_keys, keys - slack),
        np.searchsorted(source_keys, keys + slack, "right"),
    )
    if (begin == end).any():
        lacking = keys[begin == end][0]
        text = f"{number_text(lacking)} ps" if key == "ps" else f"step {int(lacking):,}"
        raise SourceError(
            f"{source.path}: no frame at {text}, which {layout.path} has; give all files that it "
            "was made from"
        )
    frames = order[begin]
    for number in np.flatnonzero(end - begin > 1).tolist():
        frame = int(numbers[number])
        own = layout.read(frame, frame + 1)
        choices = [int(frame) for frame in order[begin[number] : end[number]]]
        blocks = [source.read(n, n + 1) for n in choices]
        off = [
            [np.abs(getattr(one, name) - getattr(own, name)).max() for name in ("positions", "box")]
            for one in blocks
        ]
        frames[number] = choices[off.index(min(off))]
    return np.asarray(frames, np.int64)


def _chosen(source: Layout, frames: NDArray[np.int64]) -> Layout:
    """Return the frames of one or several files with these numbers, as a chain."""
    counts = [stop - start for _, start, stop in source.member_runs]
    edges = np.cumsum([0, *counts])
    file_number = np.searchsorted(edges, frames, "right") - 1
    in_file = frames - edges[file_number]
    parts = tuple(parts_of(file_number, in_file))
    return chain_parts([layout for layout, *_ in source.member_runs], Joining(parts, changes=True))


def _keys(layout: Layout, key: str) -> NDArray[np.float64]:
    n_frames = layout.info.n_frames
    block = layout.read(0, n_frames, atoms=[])
    return block.time if key == "ps" else block.step.astype(float)
