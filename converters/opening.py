"""Opens the source of an existing output again, and sources that are damaged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.converters.periodic import TransformedLayout
from mdio.converters.selection import AnyTopology, open_with_topology, split_readable
from mdio.core.errors import CorruptLayoutError, SourceError
from mdio.core.files.fingerprint import content_of, fingerprint
from mdio.core.files.store import AnyPath, Paths, path_list, to_path
from mdio.core.topology import Topology
from mdio.core.words import number_text, plural, times_text
from mdio.layouts.base import MADE_UP_DT_PS, TIMES_MADE_UP, Layout
from mdio.layouts.manifest import indices_from_runs
from mdio.layouts.registry import open_layout
from mdio.layouts.views import KEEP_ALL
from mdio.layouts.views.chain import chain_joined
from mdio.layouts.views.joining import (
    TIME_ROUNDING,
    FrameKeys,
    Joining,
    choose_keys,
    match_frames,
    parts_of,
)
from mdio.layouts.views.view import ViewLayout, read_columns


def source_open_options(layout: Layout) -> dict[str, Any]:
    """Return the options with which the files of the source of `layout` were opened and joined."""
    if layout.manifest is None:
        return {}
    source, recipe = layout.manifest["source"], layout.manifest.get("recipe", {})
    # Parts that are given in place of one file are joined as by default.
    joined = source.get("joined") or ({"overlap": KEEP_ALL} if "files" in source else {})
    options = {"overlap": KEEP_ALL if "matched" in joined else joined.get("overlap")}
    options |= source.get("opened", {})
    if {"unreadable_frames", "lost"} & source.keys() or recipe.get("salvage"):
        options["salvage"] = True
    return options


def open_again(
    paths: Paths,
    top: AnyTopology | None,
    record: Mapping[str, Any],
    **options: Any,
) -> Layout:
    """Open files of a source as when an output was made of it; raises as `open_with_topology`.

    `record`: the ``source`` of the output's manifest. Earlier versions did not read the times of
    CP2K's XYZ, but made some up; the source of an output that has those gets the same ones.
    """
    layout = open_with_topology(paths, top, **options)
    made_up_before = any(text.startswith(TIMES_MADE_UP) for text in record.get("made_up", ()))
    are_xyz = all(".xyz" in to_path(path).name.lower() for path in path_list(paths))
    if not (made_up_before and are_xyz and "dt" not in options and layout.stored_times.has_times):
        return layout
    layout.close()
    return open_with_topology(paths, top, dt=MADE_UP_DT_PS, **options)


def sort_as_recorded(layout: Layout, files: Paths) -> list[AnyPath]:
    """Return those of `files` that the manifest records, in its order; all if one is missing."""
    paths = path_list(files)
    return paths if len(paths) < 2 else recorded_files(layout, paths_by_contents(paths)) or paths


def paths_by_contents(paths: list[AnyPath]) -> dict[str, AnyPath]:
    """Return files by their contents, as manifests record them."""
    return {str(content_of(fingerprint(path))): path for path in paths}


def recorded_files(layout: Layout, path_by_content: dict[str, AnyPath]) -> list[AnyPath]:
    """Return the source's files among `paths_by_contents`; none where one is missing."""
    source = (layout.manifest or {}).get("source", {})
    recorded = [str(content_of(record)) for record in source.get("files", [source])]
    if set(recorded) <= path_by_content.keys():
        return [path_by_content[contents] for contents in recorded]
    return []


def open_or_salvage(path: str | PathLike[str]) -> Layout:
    """Open a trajectory; if it is damaged, with the frames after the damage."""
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
def salvage_hint_on_damage(salvage: bool) -> Iterator[None]:
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
    """Return the frames and atoms of the source that `layout` should hold, and the source.

    The view has transformed coordinates if the output does, and lacks frames that a program wrote
    (`add_writer_frames`). The source is not transformed; if its files overlap, and the output has
    every frame, each is in it once.
    """
    manifest = layout.manifest
    if manifest is None:
        return ViewLayout(source.path, source=source), source
    unreadable = manifest["source"].get("unreadable_frames")
    runs = manifest["frames"]
    frames: Any = range(*runs[0]) if len(runs) == 1 else indices_from_runs(runs)
    atoms = _atoms_in_manifest(manifest)
    transformed = _transform_source(layout, source, top)
    unit = (manifest["source"].get("joined") or {}).get("matched")
    has_grown = source.info.n_frames > manifest["source"]["n_frames"]
    if unit is None and has_grown and not count_excluded_frames(layout):
        # Frames have neither times nor steps of their own, or these are damaged.
        with suppress(SourceError, CorruptLayoutError):
            unit = choose_keys(read_frame_keys(layout), read_frame_keys(source))[2]
    if unit is not None:
        readable: Any = np.arange(source.info.n_frames)
        if source_open_options(layout).get("salvage"):  # numbers recorded may be of joined files
            readable, unreadable = split_readable(source, readable)
        view = ViewLayout(
            source.path, source=transformed, frames=readable, atoms=atoms, unreadable=unreadable
        )
        frames = readable[_source_frames_of_output(layout, view, unit)]
        if all(step == 1 for *_, step in runs):  # then bytes were copied, where they could be
            source = _chain_frames(source, frames)
            transformed, frames = _transform_source(layout, source, top), None
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


def count_excluded_frames(layout: Layout) -> int:
    """Return how many frames of its source a layout was made without, by choice."""
    manifest = layout.manifest
    if manifest is None:
        return 0
    source = manifest["source"]
    n_stored = len(indices_from_runs(manifest["frames"]))
    n_unreadable = len(indices_from_runs(source.get("unreadable_frames") or []))
    return int(source["n_frames"] - n_stored - n_unreadable)


def describe_missing_frames(layout: Layout, source: Layout) -> Iterator[str]:
    """Yield a message for each file that has changed, with frames that `layout` should have.

    The output should have the frames whose times, or steps, it lacks, except those

    - of files that have not changed since: they were left out by choice,
    - up to its last frame, if its frames were chosen,
    - of all files, if the chosen frames ended before the source did.
    """
    manifest = layout.manifest
    if manifest is None:
        return
    recorded = manifest["source"]
    n_recorded, chosen_frames = recorded["n_frames"], indices_from_runs(manifest["frames"])
    is_chosen = count_excluded_frames(layout) > 0
    interval = int(np.diff(chosen_frames[-2:]).max(initial=1))
    stops_early = is_chosen and 0 <= chosen_frames.max(initial=-1) < n_recorded - interval
    if stops_early or source.info.n_frames <= n_recorded:
        return
    contents = [content_of(record) for record in recorded.get("files", [recorded])]
    output_keys = read_frame_keys(layout)
    for file in dict.fromkeys(member for member, *_ in source.joined_layouts):
        if content_of(fingerprint(file.path)) in contents:
            continue
        frame_keys = read_frame_keys(file)
        frames = np.arange(file.info.n_frames)
        try:
            keys, file_keys, unit = choose_keys(output_keys, frame_keys)
        except SourceError:  # there are no times or steps, or they do not ascend
            missing = frames[n_recorded:]
        else:
            missing = np.setdiff1d(frames, match_frames(keys, file_keys, unit)[1])
            if is_chosen:
                min_distance = (
                    0.999 * (keys[-1] - keys[-2]) if interval > 1 and len(keys) > 1 else 0.0
                )
                missing = missing[file_keys[missing] > keys.max(initial=-np.inf) + min_distance]
        if len(missing):
            times = frame_keys.time[missing]
            yield (
                f"{file.path}: has {plural(len(missing), 'frame')} "
                f"({times_text(len(missing), times[0], times[-1], np.nan)}) that {layout.path} "
                f"lacks; add them (mdio append {file.path} {layout.path}), or convert all files "
                "together"
            )


def _atoms_in_manifest(manifest: Mapping[str, Any]) -> NDArray[np.int64] | None:
    return None if manifest["atoms"] is None else indices_from_runs(manifest["atoms"])


def topology_for(
    layout: Layout, source: Layout, top: str | PathLike[str] | None
) -> str | PathLike[str] | Topology | None:
    """Return `top`, or the topology in `layout` if that has all atoms of a source without one."""
    runs = (layout.manifest or {}).get("atoms", ())
    has_all_atoms = runs is None or list(map(list, runs)) == [[0, source.info.n_atoms, 1]]
    if top is None and has_all_atoms and source.topology() is None:
        with suppress(CorruptLayoutError):
            return layout.topology()
    return top


def _transform_source(layout: Layout, source: Layout, top: str | PathLike[str] | None) -> Layout:
    manifest = layout.manifest
    assert manifest is not None
    options = manifest["source"].get("transformed")
    if options is None:
        return source
    transformed = TransformedLayout(
        source.path, source=source, top=topology_for(layout, source, top), **options
    )
    transformed.prepare_transform(_atoms_in_manifest(manifest))
    return transformed


def writer_frames(layout: Layout) -> NDArray[np.int64]:
    """Return the numbers of frames that a program wrote, and no file of the source has."""
    source = (layout.manifest or {}).get("source", {})
    return indices_from_runs(source.get("by_program", []))


def add_writer_frames(layout: Layout, view: ViewLayout) -> ViewLayout:
    """Return a `source_view` with all frames of `layout`: its own where a program wrote them."""
    from_program = np.zeros(layout.info.n_frames, np.int64)
    from_program[writer_frames(layout)] = 1
    if not from_program.any():
        return view
    frames = np.where(from_program, np.arange(len(from_program)), np.cumsum(1 - from_program) - 1)
    joining = Joining(tuple(parts_of(from_program, frames)), changes=True)
    return ViewLayout(view.path, source=chain_joined([view, open_layout(layout.path)], joining))


def _source_frames_of_output(layout: Layout, source: ViewLayout, unit: str) -> NDArray[np.int64]:
    """Return the number in `source` of each frame of `layout` that no program wrote.

    `unit`: what they are matched by, ``ps`` or ``steps``. Where several files have a frame of the
    same time, it is the one whose coordinates are nearest to the output's, or, where these cannot
    be read, that of the last file.
    """
    source_keys = read_frame_keys(source).of(unit)
    order = np.argsort(source_keys, kind="stable")
    source_keys = source_keys[order]
    output_frames = np.setdiff1d(np.arange(layout.info.n_frames), writer_frames(layout))
    try:
        keys = read_frame_keys(layout).of(unit)[output_frames]
    except CorruptLayoutError:
        # A segment is damaged. Of frames with equal times the output most likely has the last.
        frames = order[np.diff(source_keys, append=np.inf) > 0]
        if len(frames) != len(output_frames):  # it has every nth of them, perhaps
            (first, _, step), *_ = (layout.manifest or {})["frames"]
            # Frames that cannot be read were counted, too, when every nth was chosen.
            n_skipped = source.frames[frames] - frames
            places = np.arange(len(frames)) + n_skipped - first
            frames = frames[(places >= 0) & (places % step == 0)][: len(output_frames)]
            if len(frames) != len(output_frames):
                raise
        return frames
    tolerance = np.zeros(len(keys))
    if unit == "ps":
        spacing = np.diff(np.unique(keys)).min(initial=np.inf)
        tolerance = np.minimum(TIME_ROUNDING * np.abs(keys), spacing / 4)
    begin = np.searchsorted(source_keys, keys - tolerance)
    end = np.searchsorted(source_keys, keys + tolerance, "right")
    if (begin == end).any():
        missing_key = keys[begin == end][0]
        text = f"{number_text(missing_key)} ps" if unit == "ps" else f"step {int(missing_key):,}"
        raise SourceError(
            f"{source.path}: no frame at {text}, which {layout.path} has; give all files that it "
            "was made from"
        )
    frames = order[begin]
    ambiguous = np.flatnonzero(end - begin > 1).tolist()
    with open_layout(layout.path) if ambiguous else nullcontext(layout) as verified_layout:
        for index in ambiguous:
            output_frame = int(output_frames[index])
            candidates = order[begin[index] : end[index]].tolist()
            try:
                output_block = verified_layout.read(output_frame, output_frame + 1)
            except (CorruptLayoutError, SourceError):  # most likely that of the last file
                frames[index] = candidates[-1]
                continue
            blocks = [source.read(frame, frame + 1) for frame in candidates]
            deviations = [
                [
                    np.abs(getattr(block, name) - getattr(output_block, name)).max()
                    for name in ("positions", "box")
                ]
                for block in blocks
            ]
            frames[index] = candidates[deviations.index(min(deviations))]
    return np.asarray(frames, np.int64)


def _chain_frames(source: Layout, frames: NDArray[np.int64]) -> Layout:
    """Return the frames of one or several files with these numbers, as a chain."""
    layouts, starts, stops = zip(*source.joined_layouts, strict=True)
    first_frames = np.cumsum([0, *np.subtract(stops, starts)])
    file_number = np.searchsorted(first_frames, frames, "right") - 1
    parts = parts_of(file_number, frames - first_frames[file_number])
    return chain_joined(layouts, Joining(tuple(parts), changes=True))


def read_frame_keys(layout: Layout) -> FrameKeys:
    """Return times and steps of all frames; coordinates are not read."""
    columns = read_columns(layout)
    return FrameKeys(
        path=str(layout.path),
        time=columns.time,
        step=columns.step,
        has_times=layout.stored_times.has_times,
        has_steps=layout.stored_times.has_steps,
    )
