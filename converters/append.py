"""Plans how the frames of a continuation are added to an output of mdio.

Frames of a source that the output has already are found by time, or step, and compared by their
coordinates. The plan lists which frames the output gets from which source; nothing is copied here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, cached_property
from itertools import islice, pairwise, zip_longest
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.converters.opening import open_again, read_frame_keys, topology_for
from mdio.converters.options import ConversionOptions, ConvertResult
from mdio.converters.periodic import TransformedLayout
from mdio.converters.selection import SelectedAtoms, check_not_truncated
from mdio.converters.strategies.choice import choose_strategy
from mdio.converters.strategies.conversion import Conversion
from mdio.converters.strategies.job import ExtendedOutput, Job
from mdio.converters.verify import compare_blocks
from mdio.core.errors import CorruptLayoutError, PlanError, SourceError
from mdio.core.files.fingerprint import SourceStates, content_of, fingerprint, is_unchanged_source
from mdio.core.files.locks import State, state_at
from mdio.core.files.publish import link_target, recover
from mdio.core.files.store import AnyPath, to_path
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.core.signals import signals_as_exceptions
from mdio.core.words import list_text, number_text, plural
from mdio.layouts.base import Layout
from mdio.layouts.continuation import open_continuation
from mdio.layouts.manifest import has_source_integers, indices_from_runs, runs_from_indices
from mdio.layouts.registry import open_layout, writer_class
from mdio.layouts.views import KEEP_ALL
from mdio.layouts.views.chain import ChainLayout, chain_joined
from mdio.layouts.views.joining import (
    GAP,
    FrameKeys,
    Joining,
    are_times_missing,
    merge,
    merge_by_contents,
    note_on_gap,
    parts_of,
)
from mdio.layouts.views.options import FOLLOWS_ATOMS
from mdio.layouts.views.view import ViewLayout, read_columns, read_times, select_frames
from mdio.layouts.writer import NotFinite
from mdio.parallel.executors import Executor

COMPARED_NBYTES = 1 << 30
"""Bytes compared of a source that looks unchanged; other sources are compared completely."""
FOLLOWED_NBYTES = 64 << 20
"""Bytes compared each time a followed source that looks unchanged is read."""
MIN_COMPARED = 16
"""Least number of frames that are compared, however large they are."""
RUN_NBYTES = 16 << 20
"""Bytes of frames that are read at a time to be compared."""
MAX_ROUNDING_ANGSTROM = 0.02
"""Largest difference between a frame and the same one in another format, which may round."""
MAX_ROUNDING_BOX = 1e-4
"""Largest relative difference of boxes, which are stored as vectors, or as lengths and angles."""

Numbers = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Comparison:
    """Compares frames of a source with those of an output or of an earlier source."""

    def __init__(self, old: Layout, source: Layout) -> None:
        assert old.manifest is not None
        self.source = source
        old_source = old.manifest["source"]
        files = [record.get("path", "") for record in old_source.get("files", [old_source])]
        self.has_same_format = source.path.suffix in {Path(file).suffix for file in files}
        """Whether both come from files of one format, so that both are rounded alike."""
        bounds = [
            (layout.manifest or {}).get("error_bound_angstrom", 0.0) for layout in (old, source)
        ]
        self.tolerances = {
            "positions": sum(bounds) + (0.0 if self.has_same_format else MAX_ROUNDING_ANGSTROM)
        }
        """By how much each field may differ."""
        for name, step in old.info.field_precisions.items():
            self.tolerances[name] = step / 2

    def compare(
        self,
        read: Callable[[int, int], FrameBlock],
        follows: Callable[[Numbers], Bools],
        old_frames: Numbers,
        new_frames: Numbers,
        nbytes: int | None,
    ) -> Bools:
        """Return a mask of the frames that are the same in both.

        `read(first, n)`: reads frames of the output. `follows(frames)`: whether each but the first
        follows the one before it in its file. `old_frames`, `new_frames`: numbers of the frames to
        compare in the output and the source, ascending. `nbytes`: bytes to compare, of evenly
        spread frames; None = all. If one of these differs, all are compared.
        """
        n_pairs, frame_nbytes = len(old_frames), max(1, self.source.info.frame_nbytes)
        is_equal = np.ones(n_pairs, bool)
        if nbytes is not None and n_pairs > (n := max(MIN_COMPARED, nbytes // frame_nbytes)):
            sample = np.unique(np.linspace(0, n_pairs - 1, n).astype(int))
            if self.compare(read, follows, old_frames[sample], new_frames[sample], None).all():
                return is_equal
        max_frames = max(1, RUN_NBYTES // frame_nbytes)
        breaks = np.flatnonzero(~follows(old_frames) | (np.diff(new_frames) != 1)) + 1
        for begin, end in pairwise([0, *breaks.tolist(), len(old_frames)]):
            for first in range(begin, end, max_frames):
                n_frames = min(max_frames, end - first)
                old = read(int(old_frames[first]), n_frames)
                new = self.source.read(int(new_frames[first]), int(new_frames[first]) + n_frames)
                if self._blocks_equal(old, new):
                    continue
                for offset in range(n_frames):
                    frame = slice(offset, offset + 1)
                    is_equal[first + offset] = self._blocks_equal(
                        old.frames(frame), new.frames(frame)
                    )
        return is_equal

    def _blocks_equal(self, old: FrameBlock, new: FrameBlock) -> bool:
        for name in ("velocities", "forces"):
            old_vectors, new_vectors = getattr(old, name), getattr(new, name)
            unknown = new_vectors is None or old_vectors is None or not self.has_same_format
            if unknown or np.isnan(old_vectors).all() or np.isnan(new_vectors).all():
                setattr(old, name, None)
        rounded = ("positions", "velocities", "forces")
        _, problems = compare_blocks(old, new, self.tolerances, columns=(), rounded=rounded)
        boxes = np.isclose(old.box, new.box, rtol=MAX_ROUNDING_BOX, atol=1e-3, equal_nan=True)
        return not problems and bool(boxes.all())


class Timeline:
    """The frames of an output, with those of sources merged into them.

    Attributes: `members`: the output and the sources added, which are the members of a chain.
    `member_numbers`, `member_frames`: for each frame, the number of its member, and its number
    there. `frames_of_members`: for each member, an array with the number there of each frame, or of
    one that is equal; -1 = none. `unit`: the unit in which frames were matched. `n_equal`: how many
    frames of the last source the timeline had already. `equal_members`: the members that had them.
    `notes`: on frames that were replaced or dropped.
    """

    def __init__(self, old: Layout) -> None:
        self.members: list[Layout] = [old]
        self._keys = read_frame_keys(old)
        n_frames = old.info.n_frames
        self.member_numbers = np.zeros(n_frames, np.int64)
        self.member_frames = np.arange(n_frames)
        self.frames_of_members = [np.arange(n_frames)]
        self.notes: list[str] = []
        self.unit, self.n_equal, self.equal_members = "ps", 0, list[Layout]()

    def add(
        self,
        source: Layout,
        comparison: Comparison,
        nbytes: int | None,
        overlap: str | None,
        new_keys: FrameKeys,
        following_keys: FrameKeys | None,
    ) -> None:
        """Merge the frames of a source; raises SourceError: they cannot be merged.

        `nbytes`: bytes to compare of frames that both have; None = all. `overlap`,
        `following_keys`: see `merge`. `new_keys`: times and steps of the source.
        """

        def compare(old_frames: Numbers, new_frames: Numbers) -> Bools:
            return comparison.compare(self._read, self._follows, old_frames, new_frames, nbytes)

        old_keys = self._keys
        if overlap is None and are_times_missing(old_keys, new_keys):
            merged = merge_by_contents(old_keys, new_keys, compare)
        else:
            merged = merge(old_keys, new_keys, compare, overlap, following_keys)
        is_old = merged.old_frames >= 0
        old_frames = np.where(is_old, merged.old_frames, 0)
        from_new = merged.from_new
        equal_numbers = np.unique(self.member_numbers[old_frames[merged.equal]]).tolist()
        self.equal_members = [self.members[number] for number in equal_numbers]
        self.frames_of_members = [
            np.where(is_old & (merged.equal | ~from_new), frames[old_frames], -1)
            for frames in self.frames_of_members
        ]
        self.frames_of_members.append(np.where(from_new | merged.equal, merged.new_frames, -1))
        self.member_numbers = np.where(from_new, len(self.members), self.member_numbers[old_frames])
        self.member_frames = np.where(from_new, merged.new_frames, self.member_frames[old_frames])
        columns = {
            name: np.where(
                from_new,
                getattr(new_keys, name)[merged.new_frames],
                getattr(old_keys, name)[old_frames],
            )
            for name in ("time", "step")
        }
        both_keys = new_keys, old_keys
        self._keys = replace(
            old_keys,
            has_times=all(keys.has_times for keys in both_keys),
            has_steps=all(keys.has_steps for keys in both_keys),
            **columns,
        )
        self.members.append(source)
        self.unit, self.n_equal = merged.unit, int(np.count_nonzero(merged.equal))
        self.notes += merged.notes

    @property
    def parts(self) -> list[tuple[int, int, int]]:
        """Runs of frames: number of the member, first frame, one beyond the last."""
        return parts_of(self.member_numbers, self.member_frames)

    def gaps(self) -> list[str]:
        """Return a note for each gap in time between frames of two files."""
        time = self._keys.time
        notes = []
        for index in np.flatnonzero(np.diff(self.member_numbers)).tolist():
            last, following = (
                (time[n], self.members[int(self.member_numbers[n])].path)
                for n in (index, index + 1)
            )
            intervals = [
                time[n + 1] - time[n] for n in (index - 1, index + 1) if 0 <= n < len(time) - 1
            ]
            if intervals and time[index + 1] - time[index] > GAP * max(0.0, *intervals):
                notes.append(note_on_gap(last, following, "ps"))
        return notes

    def _follows(self, frames: Numbers) -> Bools:
        """Return whether each frame but the first follows the one before it in its file."""
        same_member = np.diff(self.member_numbers[frames]) == 0
        return np.asarray(same_member & (np.diff(self.member_frames[frames]) == 1))

    def _read(self, frame: int, n_frames: int) -> FrameBlock:
        """Read frames that are neighbours in their file."""
        first = int(self.member_frames[frame])
        return self.members[int(self.member_numbers[frame])].read(first, first + n_frames)


Origin = tuple[dict[str, Any], list[list[int]]]
"""The ``source`` of a manifest, and the frames that the output has of it, as runs."""
DAMAGE_KEYS = ("unreadable_frames", "unreadable_stretches")
"""Keys of a manifest's ``source`` for frames that cannot be read."""


def prepare_append(
    sources: Sequence[AnyPath], out: str | PathLike[str], options: ConversionOptions
) -> Conversion:
    """Plan an output with the frames of `out` and those that `sources` add.

    Frames that `out` already has are found by time, compared by coordinates, and left out. Where
    two frames have the same time, the continuation's is stored, unless ``overlap`` differs.

    Raises PlanError: frames cannot be added to `out`, or an option is given that the output
    itself determines. SourceError: a source does not fit, or adds nothing.
    """
    for name in options.refused_options("append"):
        raise PlanError(
            f"{out}: frames are added as the existing ones were written, so leave out {name}; "
            "to change it, convert all sources together again"
        )
    selection = options.selection
    refused = ("stop", "step") if options.sources.overlap == KEEP_ALL else ("start", "stop", "step")
    for name in refused:  # `follow`, whose source is growing, sets them itself
        if getattr(selection, name) is not None and not options.running.source_grows:
            raise PlanError(
                f"{out}: all frames that it lacks are added, so leave out --{name}; to choose "
                "frames, convert all sources together again"
            )
    out = link_target(out)
    recover(out)
    former_state = state_at(out)
    old = open_layout(out, verify=options.sources.verify)
    try:
        if options.storage.to not in (None, old.name):
            raise PlanError(f"{out}: is {old.name} already; leave out --to")
        open_continuation(old, 0)
        files = [to_path(file) for file in sources]
        return _AppendPlanner(old, former_state, files, options).plan()
    except CorruptLayoutError as error:
        old.close()
        old._raise_clearer(error)  # another run may have replaced it meanwhile
        raise
    except BaseException:
        old.close()
        raise


def prepare_continuation(
    out: Path, stop: int, new_frames: Layout, options: ConversionOptions
) -> Conversion:
    """Plan an output of the first `stop` frames of `out`, and `new_frames` in memory."""
    former_state = state_at(out)
    old = open_layout(out)
    try:
        return _AppendPlanner(old, former_state, [], options).continue_from(stop, new_frames)
    except BaseException:
        old.close()
        raise


def check_continues(source: Path, out: Path, options: ConversionOptions) -> None:
    """Raise SourceError unless a source still holds the frames of `out`, every nth of one file."""
    with open_layout(out, verify=options.sources.verify) as old:
        planner = _AppendPlanner(old, None, [source], options.replaced(start=0))
        with planner.open_source(source):
            planner.check_same_source(source)


class _AppendPlanner:
    """Plans what to add to the output `old` from `files`; `former_state`: its state on disk."""

    def __init__(
        self,
        old: Layout,
        former_state: State | None,
        files: Sequence[Path],
        options: ConversionOptions,
    ) -> None:
        assert old.manifest is not None
        self.old, self.former_state, self.files, self.options = old, former_state, files, options
        self.manifest = old.manifest
        self.notes: list[str] = []
        self.n_left_out = 0
        """Number of frames of the files that were left out, since the output keeps its own."""
        self.source_frames: dict[Layout, tuple[TrajectoryInfo, Numbers]] = {}
        """For each source, which is a view: the info of its file, and the numbers of its frames."""
        self.transformed: dict[Path, tuple[Layout, int]] = {}
        """For each file: its frames, transformed as the output's are, and their number."""
        self.adds_by_number = options.selection.start is not None
        """Whether the frames to add are chosen by number, as in a file that is followed."""
        source = self.manifest["source"]
        has_files = "path" in source
        self.is_by_program = np.full(old.info.n_frames, not has_files)
        """For each frame of the output, whether a program wrote it: then no file has it."""
        self.is_by_program[indices_from_runs(source.get("by_program", []))] = True
        self.old_frames = indices_from_runs(self.manifest["frames"] if has_files else [])
        """Numbers, in the source, of the output's frames that no program wrote."""

    def plan(self) -> Conversion:
        """Plan an output of its own frames and those of the files."""
        old = self.old
        sources = {self.open_source(path): path for path in self.files}
        # In a store, the output is watched as the files are; on disk, its state shows changes.
        read_paths = [*self.files, *[old.path] * (self.former_state is None)]
        # A source may still be growing: only its whole frames are added.
        may_grow = self.options.running.source_grows or any(source.info.lost for source in sources)
        states = SourceStates(read_paths, may_grow=may_grow)
        if self.adds_by_number:
            ((source, path),) = sources.items()
            self.check_same_source(path)
            chain = ChainLayout([old, source], overlap=KEEP_ALL)
            old_frames = indices_from_runs(self.manifest["frames"])
            frames = np.concatenate([old_frames, self.source_frames[source][1]])
            origin = self._origin_in_one_file(path, source, frames)
        else:
            chain, origin = self._merge(sources)
        conversion = self._plan_conversion(chain, sources, origin)
        conversion.source_states = states
        return conversion

    def continue_from(self, stop: int, new_frames: Layout) -> Conversion:
        """Plan an output of the first `stop` frames, followed by those of `new_frames`."""
        n_new = new_frames.info.n_frames
        chain = chain_joined([self.old, new_frames], Joining(((0, 0, stop), (1, 0, n_new))))
        source, is_by_program = self._source_with_flaws((), ()), self.is_by_program[:stop]
        frames = self.old_frames[: np.count_nonzero(~is_by_program)]
        if "path" in source:
            numbers = np.flatnonzero(np.append(is_by_program, np.ones(n_new, bool)))
            source["by_program"] = runs_from_indices(numbers)
        else:
            source["n_frames"] = stop + n_new
            frames = np.arange(stop + n_new)
        return self._plan_conversion(chain, {}, (source, runs_from_indices(frames)))

    def _plan_conversion(
        self, chain: ChainLayout, sources: Mapping[Layout, Path], origin: Origin
    ) -> Conversion:
        old, options = self.old, self.options
        info = chain.info.replace(
            has_velocities=old.info.has_velocities, has_forces=old.info.has_forces
        )
        first_member, start, stop = chain.joined_layouts[0]
        n_unchanged = stop if first_member is old and not start else 0
        continuation = open_continuation(old, n_unchanged)
        plan = continuation.plan(info)
        n_kept = sum(end - begin for layout, begin, end in chain.joined_layouts if layout is old)
        nothing_to_add = n_kept == info.n_frames == old.info.n_frames
        summary = (
            f"new: {plural(info.n_frames - n_kept, 'frame')}; of the {old.info.n_frames:,} already "
            f"there, {n_kept:,} stay"
        )
        if nothing_to_add:
            summary = f"nothing to add: {old.path} already has all of these frames"
            if self.n_left_out:
                summary += f", or keeps its own ({plural(self.n_left_out, 'frame')})"
        not_finite = self._not_finite(continuation.n_reused_frames)
        stripe = self.manifest["stripe"]
        if stripe.get("asked"):
            options = options.replaced(
                stripe_nbytes=stripe["stripe_nbytes"], stripe_count=stripe["stripe_count"]
            )
        groups = self.manifest["group_atoms"]
        added = {source: path for source, path in sources.items() if source in chain.sources}
        job = Job(
            out=old.path,
            files=list(added.values()),
            view=ViewLayout(old.path, source=chain),
            selected_atoms=SelectedAtoms(
                None, self._atoms, {name: indices_from_runs(runs) for name, runs in groups.items()}
            ),
            plan=plan.replace(notes=(*plan.notes, summary, *self.notes, *chain.notes)),
            writer=writer_class(old.name),
            options=options,
            nbytes_in=sum(self.source_frames[source][0].nbytes for source in added),
            transformed=self.manifest["source"].get("transformed"),
            topology=old.topology(),
            extended=ExtendedOutput(continuation, *origin, chain.joined_layouts, not_finite),
            former_state=self.former_state,
        )
        if nothing_to_add:
            return NothingToAdd(job, job.plan)
        return choose_strategy(job)

    def _merge(self, sources: Mapping[Layout, Path]) -> tuple[ChainLayout, Origin]:
        """Merge the frames of all sources with those of the output; see `Timeline`."""
        old, options = self.old, self.options
        if options.sources.overlap == KEEP_ALL:
            chain = ChainLayout([old, *sources], overlap=KEEP_ALL)
            return chain, self._origin_in_all_files(chain, sources)
        timeline = Timeline(old)
        ordered = sorted((source for source in sources if source.info.n_frames), key=_first_key)
        read_keys = cache(read_frame_keys)  # each source's are needed twice
        for source, following in zip_longest(ordered, ordered[1:]):
            path = sources[source]
            is_unchanged = is_unchanged_source(path, self.manifest["source"])
            compares_all = options.running.compare_all or not is_unchanged
            nbytes = None if compares_all else COMPARED_NBYTES
            try:
                with signals_as_exceptions():
                    timeline.add(
                        source,
                        Comparison(old, source),
                        nbytes,
                        options.sources.overlap,
                        read_keys(source),
                        None if following is None else read_keys(following),
                    )
            except (KeyboardInterrupt, SystemExit) as interrupt:
                interrupt.add_note(
                    f"it was comparing the frames that {old.path} and {path} both have; nothing "
                    "was written: run it again"
                )
                raise
            n_frames = source.info.n_frames
            self.n_left_out += n_frames - int(np.count_nonzero(timeline.frames_of_members[-1] >= 0))
            have = "has" if len(timeline.equal_members) == 1 else "have"
            paths_text = list_text([str(member.path) for member in timeline.equal_members])
            if timeline.n_equal == n_frames:
                self.notes.append(
                    f"{path}: left out: {paths_text} {have} all of its frames already"
                )
            elif timeline.n_equal:
                count_text = f"{timeline.n_equal:,} of its {n_frames:,} frames"
                self.notes.append(f"{path}: {paths_text} {have} {count_text} already")
        self.notes += timeline.notes
        joining = Joining(tuple(timeline.parts), tuple(timeline.gaps()), changes=True)
        chain = chain_joined(timeline.members, joining)
        return chain, self._origin(chain, timeline, sources)

    @property
    def _atoms(self) -> Any:
        runs = self.manifest["atoms"]
        return None if runs is None else indices_from_runs(runs)

    def open_source(self, path: Path) -> Layout:
        """Open a source with the output's selection of atoms and frames."""
        options, manifest = self.options, self.manifest
        old_source = manifest["source"]
        file_records = old_source.get("files", [old_source])
        suffixes = {Path(record["path"]).suffix for record in file_records if "path" in record}
        open_options = old_source.get("opened", {}) if path.suffix in suffixes else {}
        source = open_again(
            path,
            options.sources.top,
            old_source if path.suffix in suffixes else {},
            verify=options.sources.verify,
            **open_options,
        )
        info, atoms = source.info, self._atoms
        n_atoms = manifest["source"].get("n_atoms", manifest["n_atoms"] if atoms is None else None)
        if info.n_atoms != n_atoms if n_atoms is not None else atoms.max() >= info.n_atoms:
            raise SourceError(
                f"{path}: has {info.n_atoms} atoms, but {self.old.path} was made from a trajectory "
                f"of {n_atoms or f'at least {atoms.max() + 1}'}; give a continuation of it"
            )
        precision_source = (source.manifest or manifest)["precision_source"]
        if has_source_integers(manifest) and (info.precision, precision_source) != (
            manifest["precision"],
            manifest["precision_source"],
        ):
            raise SourceError(
                f"{path}: not an XTC file with a precision of {manifest['precision']:g} angstrom, "
                f"of which {self.old.path} holds the integers; convert all files together again"
            )
        if not options.sources.salvage and not options.running.source_grows:
            check_not_truncated(info, options.selection.stop, None)
        for name in ("velocities", "forces"):
            has_field = name in self.old.info.fields
            if has_field != (name in info.fields):
                effect = "NaN in the frames added" if has_field else "left out"
                lacking = path if has_field else self.old.path
                self.notes.append(f"{lacking}: has no {name}: {effect}")
        transformed_source: Layout = source
        if transform_options := manifest["source"].get("transformed"):
            self._check_fit_reference(transform_options)
            pbc = transform_options["pbc"]
            if pbc in FOLLOWS_ATOMS and not self.adds_by_number:
                raise PlanError(
                    f"{self.old.path} was made with --pbc {pbc}, which follows atoms from the "
                    "first frame on; convert all files together again"
                )
            has_fit = "fit" in transform_options
            fits_to_file = has_fit and isinstance(transform_options["fit_reference"], str)
            if has_fit and not fits_to_file and not self.adds_by_number:
                raise PlanError(
                    f"{self.old.path} was made with --fit to a frame of its source; convert all "
                    "files together again, or name a file with --fit-reference from the beginning"
                )
            top = topology_for(self.old, source, options.sources.top)
            transformed_source = TransformedLayout(
                path, source=source, top=top, **transform_options
            )
        frames: Any = None
        if self.adds_by_number:
            selection = options.selection
            frames = range(info.n_frames)[selection.start : selection.stop : selection.step]
        else:
            dt_ps, first_ps = self._interval_ps(info), self.old.info.time_first_ps
            begin_ps = info.time_first_ps
            if dt_ps is not None:
                begin_ps = first_ps + np.ceil((begin_ps - first_ps) / dt_ps - 1e-3) * dt_ps
            recipe = manifest.get("recipe", {})
            begin_is_chosen = recipe.get("start") or "begin_ps" in recipe
            if begin_is_chosen and begin_ps < first_ps and source.stored_times.has_times:
                begin_ps = first_ps
                self.notes.append(
                    f"{path}: frames before {number_text(first_ps)} ps stay left out, since "
                    f"--start or -b chose where {self.old.path} begins"
                )
            if dt_ps is not None or begin_ps > info.time_first_ps:
                origin_ps = first_ps if dt_ps == recipe.get("dt_ps") else None
                try:
                    frames = select_frames(
                        source, begin_ps=begin_ps, dt_ps=dt_ps, origin_ps=origin_ps
                    )
                except PlanError:  # there are none
                    frames = range(0)
        self.transformed[path] = transformed_source, info.n_frames
        view = ViewLayout(path, source=transformed_source, frames=frames, atoms=atoms)
        self.source_frames[view] = info, np.asarray(view.frames)
        return view

    def _interval_ps(self, new: TrajectoryInfo) -> float | None:
        """Return the time between frames, where the output skips frames of its source; else None.

        `new`: of the file to add.
        """
        manifest, step = self.manifest, self._step
        requested_ps: float | None = manifest.get("recipe", {}).get("dt_ps")
        if step == 1 or (requested_ps and "step" not in manifest["recipe"]):
            return requested_ps
        if self._stored_interval_ps is not None:
            return self._stored_interval_ps
        # Of a single frame, the interval is that of the source, if this has more.
        is_single = manifest["source"].get("n_frames") == 1
        return requested_ps or step * (new.dt_ps if is_single else float(manifest["dt_ps"]))

    @cached_property
    def _stored_interval_ps(self) -> float | None:
        """Time between frames of the output, without gaps; None of a single frame."""
        intervals = np.diff(read_times(self.old))
        intervals = intervals[intervals > 0]
        without_gaps = intervals[intervals < 1.1 * intervals.min(initial=np.inf)]
        return float(without_gaps.mean()) if len(without_gaps) else None

    @property
    def _step(self) -> int:
        """Step between the output's frames in its source."""
        steps: list[int] = [step for *_, step in self.manifest["frames"]]
        steps.append(self.manifest.get("recipe", {}).get("step") or 1)
        return max(steps)

    def _check_fit_reference(self, transform_options: Mapping[str, Any]) -> None:
        """Raise SourceError if the file that frames were fitted to has changed."""
        reference = transform_options.get("fit_reference")
        state = fingerprint(reference) if isinstance(reference, str) else {"path": None}
        for record in self.manifest["source"].get("used", ()):
            same_path = record["path"] == state["path"]
            if same_path and content_of(record) != content_of(state):
                raise SourceError(
                    f"{reference}: was changed since the frames of {self.old.path} were fitted to "
                    "it; put the former file back, or convert all files together again"
                )

    def check_same_source(self, path: Path) -> None:
        """Compare the frames that the output has of a source with those in the source now."""
        old_frames = indices_from_runs(self.manifest["frames"])
        transformed_source, n_frames = self.transformed[path]
        if len(old_frames) and int(old_frames.max()) >= n_frames:
            raise SourceError(
                f"{path}: has {n_frames:,} frames, and {self.old.path} has frames of it up to "
                f"number {int(old_frames.max()):,}; give the file that it was made from"
            )
        view = ViewLayout(path, source=transformed_source, frames=old_frames, atoms=self._atoms)
        is_unchanged = is_unchanged_source(path, self.manifest["source"])
        frames = np.arange(len(old_frames))  # in the output and in the view
        is_equal = Comparison(self.old, view).compare(
            read=lambda first, n: self.old.read(first, first + n),
            follows=lambda frames: np.diff(frames) == 1,
            old_frames=frames,
            new_frames=frames,
            nbytes=FOLLOWED_NBYTES if is_unchanged else COMPARED_NBYTES,
        )
        if not is_equal.all():
            differing = np.flatnonzero(~is_equal)
            first_ps = read_times(view)[differing[0]]
            raise SourceError(
                f"{path}: holds another trajectory now than the one that {self.old.path} was made "
                f"from: {len(differing):,} of {len(is_equal):,} frames compared differ, the first "
                f"at {number_text(first_ps)} ps; nothing was added: convert it into another output"
            )

    def _not_finite(self, n_reused_frames: int) -> NotFinite | None:
        """Return the record of coordinates before frame `n_reused_frames` that are not finite."""
        record = self.manifest.get("not_finite")
        if record is None or not n_reused_frames:
            return None
        total, n_frames = NotFinite(**record), self.old.info.n_frames
        later = None
        if n_reused_frames < n_frames:
            later = NotFinite.count_in(
                self.old.read(n_reused_frames, n_frames).positions, n_reused_frames
            )
        if later is None:
            return total
        coordinates = total.coordinates - later.coordinates
        if not coordinates:
            return None
        return replace(total, coordinates=coordinates, frames=total.frames - later.frames)

    def _source_with_flaws(self, new_lost: Sequence[Any], made_up: Sequence[str]) -> dict[str, Any]:
        """Return the manifest's ``source`` with the flaws of the frames added."""
        source = dict(self.manifest["source"])
        lost_bytes = [*source.pop("lost", []), *map(asdict, new_lost)]
        if lost_bytes and not self.options.running.source_grows:
            source["lost"] = lost_bytes
        if texts := dict.fromkeys([*source.get("made_up", ()), *made_up]):
            source["made_up"] = list(texts)
        return source

    def _origin(
        self, chain: ChainLayout, timeline: Timeline, sources: Mapping[Layout, Path]
    ) -> Origin:
        """Return the new ``source`` of the manifest, and the frames that the output has of it."""
        pairs = zip(timeline.members, timeline.frames_of_members, strict=True)
        for member, frames in islice(pairs, 1, None):
            if (frames < 0).any() or not Comparison(self.old, member).has_same_format:
                continue
            path, old_source = sources[member], self.manifest["source"]
            has_grown = "files" not in old_source and is_unchanged_source(path, old_source)
            # Files of the same positions may differ in the last digits of boxes and times.
            if has_grown or read_columns(chain) == read_columns(member).frames(frames):
                return self._origin_in_one_file(path, member, self.source_frames[member][1][frames])
        if timeline.unit == "frames":
            return self._origin_in_all_files(chain, sources)
        # Frames of several files are matched by times, or steps. Their numbers are recorded only to
        # tell how many frames were left out.
        step = self._step
        (first, start, _), (last, _, stop) = chain.joined_layouts[0], chain.joined_layouts[-1]
        begin, _ = self._count_around(first, start)
        _, n_behind = self._count_around(last, stop - 1)
        n_source = begin + (chain.info.n_frames - 1) * step + 1 + n_behind
        source = self._with_files(chain, sources) | {"n_frames": n_source}
        source["joined"] = {"overlap": self.options.sources.overlap, "matched": timeline.unit}
        return source, [[begin, begin + chain.info.n_frames * step, step]]

    def _count_around(self, layout: Layout, frame: int) -> tuple[int, int]:
        """Return how many frames a file has before and after the one that became `frame`.

        `layout`: a source, or the output. Both numbers are 0 for an output with frames that a
        program wrote, which no file has.
        """
        if layout in self.source_frames:
            info, numbers = self.source_frames[layout]
            return int(numbers[frame]), info.n_frames - 1 - int(numbers[frame])
        if self.is_by_program.any():
            return 0, 0
        number = int(self.old_frames[frame])
        # Earlier versions took the frames of the output for those of the source.
        return number, max(0, self.manifest["source"]["n_frames"] - 1 - number)

    def _origin_in_one_file(self, path: Path, member: Layout, frames: Numbers) -> Origin:
        """Return `_origin` for an output whose frames are all from one file."""
        info, _ = self.source_frames[member]
        other_source_keys = ("files", "joined", "by_program", "lost", "made_up", *DAMAGE_KEYS)
        old_source = self.manifest["source"].items()
        source = {key: value for key, value in old_source if key not in other_source_keys}
        if info.lost and not self.options.running.source_grows:
            source["lost"] = list(map(asdict, info.lost))
        if info.made_up:
            source["made_up"] = list(info.made_up)
        source |= fingerprint(path) | {"layout": info.layout, "n_frames": info.n_frames}
        return source, runs_from_indices(frames)

    def _with_files(self, chain: ChainLayout, sources: Mapping[Layout, Path]) -> dict[str, Any]:
        """Return the manifest's ``source`` with the files of `sources`, too."""
        fingerprints = [fingerprint(path) for path in sources.values()]
        source = self._source_with_flaws(chain.info.lost, chain.info.made_up)
        first_file = {name: source.pop(name) for name in fingerprints[0] if name in source}
        by_program = np.concatenate(
            [
                self.is_by_program[start:stop]
                if layout is self.old
                else np.zeros(stop - start, bool)
                for layout, start, stop in chain.joined_layouts
            ]
        )
        source.pop("by_program", None)
        if by_program.any():
            source["by_program"] = runs_from_indices(np.flatnonzero(by_program))
        files = [*source.get("files", [first_file] if first_file else []), *fingerprints]
        return source | {"path": files[0]["path"], "files": files}

    def _origin_in_all_files(self, chain: ChainLayout, sources: Mapping[Layout, Path]) -> Origin:
        """Return `_origin` for sources added as given, one after the other."""
        source = self._with_files(chain, sources)
        n_before = source["n_frames"] if "path" in self.manifest["source"] else 0
        frames = [self.old_frames]
        for member, start, end in chain.joined_layouts[1:]:
            info, member_frames = self.source_frames[member]
            frames.append(member_frames[start:end] + n_before)
            n_before += info.n_frames
        source |= {"n_frames": n_before, "joined": {"overlap": KEEP_ALL}}
        if {"parts", "matched"} & self.manifest["source"].get("joined", {}).keys():
            # Of files that overlap the output has not all frames, so their numbers do not go on.
            source["joined"]["matched"] = "ps" if chain.stored_times.has_times else "steps"
        return source, runs_from_indices(np.concatenate(frames))


def _first_key(source: Layout) -> float:
    """Return the first time (or step) of a source, by which sources are sorted."""
    if source.stored_times.has_times:
        return source.info.time_first_ps
    return float(source.read(0, 1, atoms=[]).step[0])


class NothingToAdd(Conversion):
    """An output that already has all frames to be added: it is not changed."""

    @property
    def n_reused_frames(self) -> int:
        """All frames."""
        return self.plan.n_frames

    def run(self, executor: Executor, **_: Any) -> ConvertResult:
        """Return the result of writing nothing."""
        self.view.close()
        return self.job.result(
            self.plan, nbytes_out=0, seconds=0.0, workers=executor.n_workers, found_complete=True
        )
