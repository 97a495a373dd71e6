"""Opening sources again, and those that are damaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.converters.periodic import TransformedLayout, fits_frame
from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.files.fingerprint import contents_of, fingerprint
from mdio.core.files.store import AnyPath, Paths, path_list
from mdio.core.words import number_text, plural, times_text
from mdio.layouts.base import Layout
from mdio.layouts.manifest import indices_from_runs
from mdio.layouts.registry import open_layout
from mdio.layouts.views import KEEP_ALL
from mdio.layouts.views.chain import chain_parts
from mdio.layouts.views.joining import (
    ROUNDING,
    FrameKeys,
    Joining,
    match_frames,
    match_keys,
    parts_of,
)
from mdio.layouts.views.view import ViewLayout, read_columns


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


def recorded_files(layout: Layout, path_of: dict[str, AnyPath]) -> list[AnyPath]:
    """Return the files of the source among those of `by_contents`; none where one is missing."""
    source = (layout.manifest or {}).get("source", {})
    recorded = [str(contents_of(state)) for state in source.get("files", [source])]
    return [path_of[one] for one in recorded] if set(recorded) <= path_of.keys() else []


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


def source_view(
    layout: Layout, source: Layout, top: str | PathLike[str] | None
) -> tuple[ViewLayout, Layout]:
    """Return the frames and atoms of the source that `layout` should hold.

    Those that a program wrote are not among them; see `with_own_frames`.
    Returns them as they were converted, and the source that has them: of files that overlap, each
    frame once.
    """
    manifest = layout.manifest
    frames: Any = None
    atoms = None
    unreadable = None
    transformed: Layout = source
    if manifest is not None:
        unreadable = manifest["source"].get("unreadable_frames")
        runs = manifest["frames"]
        frames = range(*runs[0]) if len(runs) == 1 else indices_from_runs(runs)
        atoms = _atoms_of(manifest)
        transformed = _transformed(manifest, source, top)
        matched = (manifest["source"].get("joined") or {}).get("matched")
        if matched is None and source.info.n_frames > manifest["source"]["n_frames"]:
            matched = _key_of_grown(layout, source)
        if matched is not None:
            n_source = source.info.n_frames
            intact = np.setdiff1d(np.arange(n_source), indices_from_runs(unreadable or []))
            view = ViewLayout(source.path, source=transformed, frames=intact, atoms=atoms)
            frames = intact[_matching(layout, view, matched)]
            source = _chosen(source, frames)  # whose bytes can be copied, as they were
            transformed, frames = _transformed(manifest, source, top), None
    info = source.info
    last = -1 if frames is None or not len(frames) else int(max(frames[0], frames[-1]))
    if last >= info.n_frames or (atoms is not None and atoms.max(initial=-1) >= info.n_atoms):
        raise SourceError(
            f"{source.path} has {info.n_frames} frames of {info.n_atoms} atoms, so {layout.path} "
            f"({layout.info.n_frames} of {layout.info.n_atoms}) was not made from it; give the "
            "trajectory that it was made from"
        )
    view = ViewLayout(
        source.path, source=transformed, frames=frames, atoms=atoms, unreadable=unreadable
    )
    return view, source


def n_left_out(layout: Layout) -> int:
    """Return how many frames of its source a layout was made without, by choice."""
    manifest = layout.manifest
    if manifest is None:
        return 0
    source = manifest["source"]
    runs = (manifest["frames"], source.get("unreadable_frames") or [])
    return int(source["n_frames"] - sum(len(indices_from_runs(one)) for one in runs))


def find_in_output(
    layout: Layout, source: Layout, further: Sequence[Layout], top: str | PathLike[str] | None
) -> Iterator[str | tuple[ViewLayout, ViewLayout]]:
    """Look for the frames of files that are not as they were when `layout` was made.

    Yields a message for each file with frames that `layout` lacks and should have, or that cannot
    be looked for; and for `further` ones, frames of `layout` and those that the file has there.
    Those of `source` are compared one by one.
    What the output lacks of files that are as they were was left out by choice. Of others, those
    frames count whose times, or steps, it lacks; behind its last one, if its frames were chosen;
    none, if the choice ended there.
    """
    manifest = layout.manifest
    if manifest is None:
        return
    recorded = manifest["source"]
    n_recorded, numbers = recorded["n_frames"], indices_from_runs(manifest["frames"])
    is_chosen = n_left_out(layout) > 0
    spacing = int(np.diff(numbers[-2:]).max(initial=1))
    should_grow = not is_chosen or not 0 <= numbers.max(initial=-1) < n_recorded - spacing
    contents = [contents_of(state) for state in recorded.get("files", [recorded])]
    transformed = recorded.get("transformed") or {}
    needs_whole_source = transformed.get("pbc") == "nojump" or fits_frame(transformed)
    output_table = None
    members = source.joined_layouts if source.info.n_frames > n_recorded else ()
    for file in (*dict.fromkeys(member for member, *_ in members), *further):
        if contents_of(fingerprint(file.path)) in contents:
            continue
        if file.info.n_atoms != source.info.n_atoms:
            yield (
                f"{file.path}: has {file.info.n_atoms} atoms, but {layout.path} was made from "
                f"{source.info.n_atoms}; give the files that it was made from"
            )
            continue
        output_table = output_table or read_frame_table(layout)
        table = read_frame_table(file)
        frames = np.arange(file.info.n_frames)
        lacking = frames[n_recorded:]
        try:
            keys, file_keys, unit = match_keys(output_table, table)
        except SourceError:  # there are no times or steps, or they do not ascend
            if file in further:
                yield (
                    f"{file.path}: its {plural(len(frames), 'frame')} cannot be found in "
                    f"{layout.path}, since the times of both would have to ascend; give the files "
                    "that it was made from, or convert all together"
                )
                continue
        else:
            matched, file_matched = match_frames(keys, file_keys, unit)
            lacking = np.setdiff1d(frames, file_matched)
            if is_chosen:
                lacking = lacking[file_keys[lacking] > keys.max(initial=-np.inf)]
            if file in further and len(matched) and needs_whole_source:
                yield (
                    f"{file.path}: has {plural(len(matched), 'frame')} at times that {layout.path} "
                    "has, which cannot be compared: with --pbc nojump, or fitted to a frame, they "
                    "depend on the whole source; give the files that it was made from"
                )
            elif file in further and len(matched):
                transformed_source, atoms = _transformed(manifest, file, top), _atoms_of(manifest)
                yield (
                    ViewLayout(layout.path, source=open_layout(layout.path), frames=matched),
                    ViewLayout(
                        file.path, source=transformed_source, frames=file_matched, atoms=atoms
                    ),
                )
        if len(lacking) and should_grow:
            times = table.time[lacking]
            yield (
                f"{file.path}: has {plural(len(lacking), 'frame')} "
                f"({times_text(len(lacking), times[0], times[-1], np.nan)}) that {layout.path} "
                f"lacks; add them (mdio append {file.path} {layout.path}), or convert all files "
                "together"
            )


def _atoms_of(manifest: Mapping[str, Any]) -> NDArray[np.int64] | None:
    return None if manifest["atoms"] is None else indices_from_runs(manifest["atoms"])


def _transformed(
    manifest: Mapping[str, Any], source: Layout, top: str | PathLike[str] | None
) -> Layout:
    """Return a source with its frames transformed as by the conversion."""
    options = manifest["source"].get("transformed")
    if options is None:
        return source
    layout = TransformedLayout(source.path, source=source, top=top, **options)
    layout.prepare_steps(_atoms_of(manifest))
    return layout


def _key_of_grown(layout: Layout, source: Layout) -> str | None:
    """Return by what all frames of a source are found in one that has more: ``ps`` or ``steps``.

    None if frames were chosen by their numbers, or have neither times nor steps of their own.
    """
    if n_left_out(layout):
        return None
    try:
        return match_keys(read_frame_table(layout), read_frame_table(source))[2]
    except SourceError:
        return None


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
    of the same time, it is the one with the contents that come next to those of the output, or,
    where these cannot be read, that of the last.
    Raises SourceError: there is none.
    """
    source_keys = read_frame_table(source).of(key)
    order = np.argsort(source_keys, kind="stable")
    source_keys = source_keys[order]
    numbers = np.setdiff1d(np.arange(layout.info.n_frames), by_program(layout))
    try:
        keys = read_frame_table(layout).of(key)[numbers]
    except CorruptLayoutError:  # a damaged segment; most likely the last of equal ones was taken
        frames = order[np.diff(source_keys, append=np.inf) > 0]
        if len(frames) != len(numbers):
            raise
        return frames
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
    several = np.flatnonzero(end - begin > 1).tolist()
    with open_layout(layout.path) if several else nullcontext(layout) as verified:
        for number in several:
            frame = int(numbers[number])
            choices = [int(frame) for frame in order[begin[number] : end[number]]]
            try:
                output_block = verified.read(frame, frame + 1)
            except (CorruptLayoutError, SourceError):  # most likely that of the last file
                frames[number] = choices[-1]
                continue
            blocks = [source.read(n, n + 1) for n in choices]
            off = [
                [
                    np.abs(getattr(one, name) - getattr(output_block, name)).max()
                    for name in ("positions", "box")
                ]
                for one in blocks
            ]
            frames[number] = choices[off.index(min(off))]
    return np.asarray(frames, np.int64)


def _chosen(source: Layout, frames: NDArray[np.int64]) -> Layout:
    """Return the frames of one or several files with these numbers, as a chain."""
    counts = [stop - start for _, start, stop in source.joined_layouts]
    edges = np.cumsum([0, *counts])
    file_number = np.searchsorted(edges, frames, "right") - 1
    in_file = frames - edges[file_number]
    parts = tuple(parts_of(file_number, in_file))
    return chain_parts(
        [layout for layout, *_ in source.joined_layouts], Joining(parts, changes=True)
    )


def read_frame_table(layout: Layout) -> FrameKeys:
    """Return times and steps of all frames; coordinates are not read."""
    columns = read_columns(layout)
    return FrameKeys(
        path=str(layout.path),
        time=columns.time,
        step=columns.step,
        has_times=layout.stored_times.has_times,
        has_steps=layout.stored_times.has_steps,
    )
