"""Frames of a continuation, added to an output of mdio.

First, which frames of a source the output has already: a source that has grown is recognised by
its contents. Then, which frames the output gets, and from which source, before any is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from itertools import pairwise, zip_longest
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.converters.opening import read_frame_table
from mdio.converters.options import ConversionOptions, ConvertResult
from mdio.converters.periodic import TransformedLayout, fits_frame
from mdio.converters.selection import AtomChoice, check_whole, open_with_topology
from mdio.converters.storage import StripeRequest
from mdio.converters.strategies.choice import choose
from mdio.converters.strategies.conversion import Conversion
from mdio.converters.strategies.job import Appended, Job
from mdio.converters.verify import compare_blocks
from mdio.core.errors import CorruptLayoutError, PlanError, SourceError
from mdio.core.files.fingerprint import (
    SourceStates,
    contents_of,
    fingerprint,
    is_unchanged_source,
)
from mdio.core.files.publish import link_target, settle
from mdio.core.files.store import AnyPath, to_path
from mdio.core.files.turns import State, state_at
from mdio.core.frames import FrameBlock, TrajectoryInfo
from mdio.core.signals import terminations_raised
from mdio.core.words import list_text, number_text, plural
from mdio.layouts.base import Layout
from mdio.layouts.continuation import open_continuation
from mdio.layouts.manifest import has_source_integers, indices_from_runs, runs_from_indices
from mdio.layouts.registry import open_layout, writer_class
from mdio.layouts.views import KEEP_ALL
from mdio.layouts.views.chain import ChainLayout, chain_parts
from mdio.layouts.views.joining import (
    GAP,
    FrameKeys,
    Joining,
    lack_own_times,
    merge,
    merge_counted,
    note_on_gap,
    parts_of,
)
from mdio.layouts.views.view import ViewLayout, read_columns, read_times, select_frames
from mdio.layouts.writer import NotFinite
from mdio.parallel.executors import Executor

COMPARED_NBYTES = 1 << 30
"""Bytes compared of a source that looks unchanged; other sources are compared completely."""
FOLLOWED_NBYTES = 64 << 20
"""Bytes compared at each look at a followed source that looks unchanged."""
MIN_COMPARED = 16
"""Frames that are compared at least, however large they are."""
RUN_NBYTES = 16 << 20
MAX_ROUNDING_ANGSTROM = 0.02
"""Largest difference between a frame and the same one in another format, which may round."""
MAX_ROUNDING_BOX = 1e-4
"""Relative: unit cells are kept as vectors or as lengths and angles."""

Numbers = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Comparison:
    """Compares frames of a source with those of an output or of an earlier source."""

    def __init__(self, old: Layout, source: Layout) -> None:
        assert old.manifest is not None
        old_source = old.manifest["source"]
        files = [record.get("path", "") for record in old_source.get("files", [old_source])]
        self.is_exact = source.path.suffix in {Path(file).suffix for file in files}
        """Whether both come from files of one format, which rounds in one way."""
        bounds = [
            (layout.manifest or {}).get("error_bound_angstrom", 0.0) for layout in (old, source)
        ]
        self.allowed = {
            "positions": sum(bounds) + (0.0 if self.is_exact else MAX_ROUNDING_ANGSTROM)
        }
        for name, step in old.info.field_precisions.items():
            self.allowed[name] = step / 2

    def same(
        self,
        read: Callable[[int, int], FrameBlock],
        follows: Callable[[Numbers], Bools],
        source: Layout,
        old_frames: Numbers,
        new_frames: Numbers,
        nbytes: int | None,
    ) -> Bools:
        """Return which frames are the same, a mask.

        `read(first, n)`: reads frames of the output. `follows(frames)`: whether each but the first
        follows the one before it in its file. `source`: the layout with the new frames.
        `old_frames`, `new_frames`: numbers of the frames to compare, ascending. `nbytes`: bytes to
        compare, of evenly spread frames; None = all. If one of these differs, all are compared.
        """
        n_pairs = n_compared = len(old_frames)
        if nbytes is not None:
            n_compared = min(n_pairs, max(MIN_COMPARED, nbytes // max(1, source.info.frame_nbytes)))
        if n_compared < n_pairs:
            sample = np.unique(np.linspace(0, n_pairs - 1, n_compared).astype(int))
            if self._same(read, follows, source, old_frames[sample], new_frames[sample]).all():
                return np.ones(n_pairs, bool)
        return self._same(read, follows, source, old_frames, new_frames)

    def _same(
        self,
        read: Callable[[int, int], FrameBlock],
        follows: Callable[[Numbers], Bools],
        source: Layout,
        old_frames: Numbers,
        new_frames: Numbers,
    ) -> Bools:
        is_equal = np.ones(len(old_frames), bool)
        max_frames = max(1, RUN_NBYTES // max(1, source.info.frame_nbytes))
        breaks = np.flatnonzero(~follows(old_frames) | (np.diff(new_frames) != 1)) + 1
        for begin, end in pairwise([0, *breaks.tolist(), len(old_frames)]):
            for first in range(begin, end, max_frames):
                n_frames = min(max_frames, end - first)
                old = read(int(old_frames[first]), n_frames)
                new = source.read(int(new_frames[first]), int(new_frames[first]) + n_frames)
                if self._equal(old, new):
                    continue
                for offset in range(n_frames):
                    frame = slice(offset, offset + 1)
                    is_equal[first + offset] = self._equal(old.frames(frame), new.frames(frame))
        return is_equal

    def _equal(self, old: FrameBlock, new: FrameBlock) -> bool:
        for name in ("velocities", "forces"):
            old_vectors, new_vectors = getattr(old, name), getattr(new, name)
            unknown = new_vectors is None or old_vectors is None or not self.is_exact
            if unknown or np.isnan(old_vectors).all() or np.isnan(new_vectors).all():
                setattr(old, name, None)
        rounded = ("positions", "velocities", "forces")
        _, problems = compare_blocks(old, new, self.allowed, columns=(), rounded=rounded)
        boxes = np.isclose(old.box, new.box, rtol=MAX_ROUNDING_BOX, atol=1e-3, equal_nan=True)
        return not problems and bool(boxes.all())


def check_same_trajectory(
    source: Path, out: Path, is_equal: Bools, times_ps: NDArray[np.float64]
) -> None:
    """Raise SourceError if frames of a source differ from those that the output has from it."""
    if is_equal.all():
        return
    differing = np.flatnonzero(~is_equal)
    raise SourceError(
        f"{source}: holds another trajectory now than the one that {out} was made from: "
        f"{len(differing):,} of {len(is_equal):,} frames compared differ, the first at "
        f"{number_text(times_ps[differing[0]])} ps; nothing was added: convert it into another "
        "output"
    )


class Timeline:
    """The frames of an output, with those of sources merged into them.

    Attributes: `members`: the output and the sources added. `member`, `frame`: for each frame, its
    member and its number there. `numbers`: for each member, the number of its frame that each
    frame is or equals; -1 = none. `unit`: the unit in which frames were matched. `n_equal`: how
    many frames of the last source were there already. `holders`: the members that had them.
    `notes`: frames replaced or dropped.
    """

    def __init__(self, old: Layout) -> None:
        self.members: list[Layout] = [old]
        self._frames = read_frame_table(old)
        n_frames = old.info.n_frames
        self.member = np.zeros(n_frames, np.int64)
        self.frame = np.arange(n_frames)
        self.numbers = [np.arange(n_frames)]
        self.notes: list[str] = []
        self.unit, self.n_equal, self.holders = "ps", 0, list[Layout]()

    def add(
        self,
        source: Layout,
        comparison: Comparison,
        nbytes: int | None,
        overlap: str | None,
        new: FrameKeys,
        following: FrameKeys | None,
    ) -> None:
        """Merge the frames of a source.

        `nbytes`: bytes to compare of frames that both have; None = all. `overlap`, `following`: see
        `merge`. `new`: times and steps of the source.
        Raises SourceError: they cannot be merged.
        """

        def same(old_frame: Numbers, new_frame: Numbers) -> NDArray[np.bool_]:
            return comparison.same(self._read, self._follows, source, old_frame, new_frame, nbytes)

        if overlap is None and lack_own_times(self._frames, new):
            merged = merge_counted(self._frames, new, same)
        else:
            merged = merge(self._frames, new, same, overlap, following)
        is_old = merged.old_frames >= 0
        old_frame = np.where(is_old, merged.old_frames, 0)
        added = merged.added
        holders = np.unique(self.member[old_frame[merged.equal]]).tolist()
        self.holders = [self.members[number] for number in holders]
        new_frame = np.where(added | merged.equal, merged.new_frames, -1)
        self.numbers = [
            np.where(is_old & (merged.equal | ~added), numbers[old_frame], -1)
            for numbers in self.numbers
        ]
        self.numbers.append(new_frame)
        self.member = np.where(added, len(self.members), self.member[old_frame])
        self.frame = np.where(added, merged.new_frames, self.frame[old_frame])
        columns = {
            name: np.where(
                added, getattr(new, name)[merged.new_frames], getattr(self._frames, name)[old_frame]
            )
            for name in ("time", "step")
        }
        tables = new, self._frames
        self._frames = replace(
            self._frames,
            has_times=all(numbers.has_times for numbers in tables),
            has_steps=all(numbers.has_steps or numbers.has_times for numbers in tables),
            **columns,
        )
        self.members.append(source)
        self.unit, self.n_equal = merged.unit, int(np.count_nonzero(merged.equal))
        self.notes += merged.notes

    @property
    def parts(self) -> list[tuple[int, int, int]]:
        """Runs of frames: number of the member, first frame, one beyond the last."""
        return parts_of(self.member, self.frame)

    def gaps(self) -> list[str]:
        """Return a note for each gap in time between frames of two files."""
        time = self._frames.time
        notes = []
        for index in np.flatnonzero(np.diff(self.member)).tolist():
            last, following = (
                (time[n], self.members[int(self.member[n])].path) for n in (index, index + 1)
            )
            around = [
                time[n + 1] - time[n] for n in (index - 1, index + 1) if 0 <= n < len(time) - 1
            ]
            if around and time[index + 1] - time[index] > GAP * max(around):
                notes.append(note_on_gap(last, following, "ps"))
        return notes

    def _follows(self, frames: Numbers) -> NDArray[np.bool_]:
        """Return whether each frame but the first follows the one before it in its file."""
        member, frame = self.member[frames], self.frame[frames]
        return np.asarray((np.diff(member) == 0) & (np.diff(frame) == 1))

    def _read(self, frame: int, n_frames: int) -> FrameBlock:
        """Read frames that are neighbours in their file."""
        first = int(self.frame[frame])
        return self.members[int(self.member[frame])].read(first, first + n_frames)


Origin = tuple[dict[str, Any], list[list[int]]]
"""The ``source`` of a manifest, and the frames that the output has of it, as runs."""
DAMAGE_KEYS = ("unreadable_frames", "unreadable_stretches")
"""Keys of a manifest's ``source`` for frames that cannot be read."""


def prepare_append(
    sources: Sequence[AnyPath], out: str | PathLike[str], options: ConversionOptions
) -> Conversion:
    """Plan an output with the frames of `out` and those that `sources` add.

    Frames that `out` already has are found by time, compared by coordinates, and left out. Where
    two frames have the same time, the continuation's is taken unless ``overlap`` says otherwise.

    Raises PlanError: frames cannot be added to `out`, or an option is given that the output
    itself determines. SourceError: a source does not fit, or adds nothing.
    """
    for name in options.out_of_place("append"):
        raise PlanError(
            f"{out}: frames are added as the existing ones were written, so leave out {name}; "
            "to change it, convert all sources together again"
        )
    selection = options.selection
    refused = ("stop", "step") if options.sources.overlap == KEEP_ALL else ("start", "stop", "step")
    for name in refused:  # those that follow a file set them
        if getattr(selection, name) is not None and not options.running.growing:
            raise PlanError(
                f"{out}: all frames that it lacks are added, so leave out --{name}; to choose "
                "frames, convert all sources together again"
            )
    out = link_target(out)
    settle(out)
    former = state_at(out)
    old = open_layout(out, verify=options.sources.verify)
    try:
        if options.storage.to not in (None, old.name):
            raise PlanError(f"{out}: is {old.name}, and stays it; leave out --to")
        open_continuation(old, 0)
        files = [to_path(file) for file in sources]
        return _Plan(old, former, files, options).plan()
    except CorruptLayoutError as error:
        old.close()
        old._raise_clearer(error)  # another run may have replaced it meanwhile
        raise
    except BaseException:
        old.close()
        raise


def prepare_continuation(
    out: Path, stop: int, new: Layout, options: ConversionOptions
) -> Conversion:
    """Plan an output of the first `stop` frames of `out`, followed by those of `new`, in memory.

    Raises PlanError, SourceError: `out` cannot be continued.
    """
    former = state_at(out)
    old = open_layout(out)
    try:
        return _Plan(old, former, [], options).continue_from(stop, new)
    except BaseException:
        old.close()
        raise


def check_continues(source: Path, out: Path, options: ConversionOptions) -> None:
    """Check that a source still holds the frames that `out` has of it, every nth of one file.

    Raises SourceError: it does not.
    """
    old = open_layout(out, verify=options.sources.verify)
    plan = _Plan(old, None, [source], options.replaced(start=0))
    try:
        with plan.source(source):
            plan.check_same_source(source)
    finally:
        old.close()


class _Plan:
    def __init__(
        self, old: Layout, former: State | None, files: Sequence[Path], options: ConversionOptions
    ) -> None:
        assert old.manifest is not None
        self.old, self.former, self.files, self.options = old, former, files, options
        self.manifest = old.manifest
        self.notes: list[str] = []
        self.n_left_out = 0
        """Frames of the files in place of which the output's own are kept."""
        self.frames_of: dict[Layout, tuple[TrajectoryInfo, NDArray[np.int64]]] = {}
        """For each source, which is a view: what its file holds, and the numbers of its frames."""
        self.transformed: dict[Path, tuple[Layout, int]] = {}
        """For each file: all its frames, transformed as the output's are, and their number."""
        self.numbered = options.selection.start is not None
        """Whether the frames to add are given by number, as in a file that is followed."""
        source = self.manifest["source"]
        is_of_file = "path" in source
        self.by_program = np.full(old.info.n_frames, not is_of_file)
        """For each frame of the output, whether a program wrote it, so that no file has it."""
        self.by_program[indices_from_runs(source.get("by_program", []))] = True
        self.before = indices_from_runs(self.manifest["frames"] if is_of_file else [])
        """The others' numbers in the source."""
        strides = [step for *_, step in self.manifest["frames"]] or [1]
        dt_ps = float(self.manifest["dt_ps"])
        if old.info.n_frames == 1:  # then it is that of the source
            dt_ps *= max(strides)
        self.stride_ps = dt_ps if max(strides) > 1 else None
        """Time between frames, where the output skips frames of its source."""

    def plan(self) -> Conversion:
        old = self.old
        sources = {self.source(path): path for path in self.files}
        # On disk, the output itself is compared when it is replaced.
        read_paths = [*self.files, *[old.path] * (self.former is None)]
        # A source may still be growing: only its whole frames are taken.
        may_grow = self.options.running.growing or any(source.info.lost for source in sources)
        states = SourceStates(read_paths, may_grow=may_grow)
        if self.numbered:
            ((source, path),) = sources.items()
            self.check_same_source(path)
            chain = ChainLayout([old, source], overlap=KEEP_ALL)
            before = indices_from_runs(self.manifest["frames"])
            numbers = np.concatenate([before, self.frames_of[source][1]])
            origin = self._origin_of_one(path, source, numbers)
        else:
            chain, origin = self._merged(sources)
        conversion = self._conversion(chain, sources, origin)
        conversion.states = states
        return conversion

    def continue_from(self, stop: int, new: Layout) -> Conversion:
        """Plan an output of the first `stop` frames, followed by those of `new`."""
        n_new = new.info.n_frames
        chain = chain_parts([self.old, new], Joining(((0, 0, stop), (1, 0, n_new))))
        source, by_program = self._source_with_flaws((), ()), self.by_program[:stop]
        frames = self.before[: np.count_nonzero(~by_program)]
        if "path" in source:
            numbers = np.flatnonzero(np.append(by_program, np.ones(n_new, bool)))
            source["by_program"] = runs_from_indices(numbers)
        else:
            source["n_frames"] = stop + n_new
            frames = np.arange(stop + n_new)
        return self._conversion(chain, {}, (source, runs_from_indices(frames)))

    def _conversion(
        self,
        chain: ChainLayout,
        sources: Mapping[Layout, Path],
        origin: Origin,
    ) -> Conversion:
        old, options = self.old, self.options
        info = chain.info.replace(
            has_velocities=old.info.has_velocities, has_forces=old.info.has_forces
        )
        first, start, stop = chain.joined_layouts[0]
        stop = stop if first is old and not start else 0
        continuation = open_continuation(old, stop)
        plan = continuation.plan(info)
        n_old = sum(end - begin for layout, begin, end in chain.joined_layouts if layout is old)
        summary = (
            f"new: {plural(info.n_frames - n_old, 'frame')}; of the {old.info.n_frames:,} already "
            f"there, {n_old:,} stay"
        )
        if n_old == info.n_frames == old.info.n_frames:
            summary = f"nothing to add: {old.path} already has all of these frames"
            if self.n_left_out:
                summary += f", or keeps its own ({plural(self.n_left_out, 'frame')})"
        not_finite = self._not_finite(continuation.n_reused)
        stripe = self.manifest["stripe"]
        stripe_sizes = (
            (stripe["stripe_nbytes"], stripe["stripe_count"]) if stripe.get("asked") else ()
        )
        groups = self.manifest["group_atoms"]
        read_paths = [path for member, path in sources.items() if member in chain.sources]
        job = Job(
            out=old.path,
            files=read_paths,
            view=ViewLayout(old.path, source=chain),
            choice=AtomChoice(
                None, self._atoms, {name: indices_from_runs(runs) for name, runs in groups.items()}
            ),
            plan=plan.replace(notes=(*plan.notes, summary, *self.notes, *chain.notes)),
            writer=writer_class(old.name),
            options=options,
            striping=StripeRequest(*stripe_sizes),
            nbytes_in=sum(
                self.frames_of[member][0].nbytes for member in sources if member in chain.sources
            ),
            transformed=self.manifest["source"].get("transformed"),
            topology=old.topology(),
            appended=Appended(continuation, *origin, chain.joined_layouts, not_finite),
            former=self.former,
        )
        if n_old == info.n_frames == old.info.n_frames:
            return NothingToDo(job, job.plan)
        return choose(job)

    def _merged(self, sources: Mapping[Layout, Path]) -> tuple[ChainLayout, Origin]:
        """Put the frames of all sources among those of the output; see `Timeline`."""
        old, options = self.old, self.options
        if options.sources.overlap == KEEP_ALL:
            chain = ChainLayout([old, *sources], overlap=KEEP_ALL)
            return chain, self._origin_of_all(chain, sources)
        timeline = Timeline(old)
        ordered = sorted((source for source in sources if source.info.n_frames), key=_begin)
        table_of = cache(read_frame_table)  # each is asked for twice
        for source, following in zip_longest(ordered, ordered[1:]):
            path = sources[source]
            is_known = (
                is_unchanged_source(path, self.manifest["source"])
                and not options.running.compare_all
            )
            nbytes = COMPARED_NBYTES if is_known else None
            try:
                with terminations_raised():
                    timeline.add(
                        source,
                        Comparison(old, source),
                        nbytes,
                        options.sources.overlap,
                        table_of(source),
                        None if following is None else table_of(following),
                    )
            except (KeyboardInterrupt, SystemExit) as end:
                end.add_note(
                    f"it was comparing the frames that {old.path} and {path} both have; nothing "
                    "was written: run it again"
                )
                raise
            n_frames = source.info.n_frames
            self.n_left_out += n_frames - int(np.count_nonzero(timeline.numbers[-1] >= 0))
            have = "has" if len(timeline.holders) == 1 else "have"
            holders = f"{list_text([str(one.path) for one in timeline.holders])} {have}"
            if timeline.n_equal == n_frames:
                self.notes.append(f"{path}: left out: {holders} all of its frames already")
            elif timeline.n_equal:
                n_text = f"{timeline.n_equal:,} of its {n_frames:,} frames"
                self.notes.append(f"{path}: {holders} {n_text} already")
        self.notes += timeline.notes
        joining = Joining(tuple(timeline.parts), tuple(timeline.gaps()), changes=True)
        chain = chain_parts(timeline.members, joining)
        return chain, self._origin(chain, timeline, sources)

    @property
    def _atoms(self) -> Any:
        runs = self.manifest["atoms"]
        return None if runs is None else indices_from_runs(runs)

    def source(self, path: Path) -> Layout:
        """Open a source with the output's selection of atoms and frames."""
        options, manifest = self.options, self.manifest
        old_source = manifest["source"]
        recorded = old_source.get("files", [old_source])
        suffixes = {Path(record["path"]).suffix for record in recorded if "path" in record}
        opened = old_source.get("opened", {}) if path.suffix in suffixes else {}
        source = open_with_topology(
            path, options.sources.top, verify=options.sources.verify, **opened
        )
        info, atoms = source.info, self._atoms
        n_atoms = manifest["source"].get("n_atoms", manifest["n_atoms"] if atoms is None else None)
        if info.n_atoms != n_atoms if n_atoms is not None else atoms.max() >= info.n_atoms:
            raise SourceError(
                f"{path}: has {info.n_atoms} atoms, but {self.old.path} was made from a trajectory "
                f"of {n_atoms or f'at least {atoms.max() + 1}'}; give a continuation of it"
            )
        integers = has_source_integers(manifest)
        origin = (source.manifest or manifest)["precision_source"]
        if integers and (info.precision, origin) != (
            manifest["precision"],
            manifest["precision_source"],
        ):
            raise SourceError(
                f"{path}: not an XTC file with a precision of {manifest['precision']:g} angstrom, "
                f"of which {self.old.path} holds the integers; convert all files together again"
            )
        if not options.sources.salvage and not options.running.growing:
            check_whole(info, options.selection.stop, None)
        for name in ("velocities", "forces"):
            has_field = name in self.old.info.fields
            if has_field != (name in info.fields):
                effect = "NaN in the frames added" if has_field else "left out"
                lacking = path if has_field else self.old.path
                self.notes.append(f"{lacking}: has no {name}: {effect}")
        transformed_source: Layout = source
        if transformed := manifest["source"].get("transformed"):
            self._check_reference(transformed)
            if transformed["pbc"] == "nojump" and not self.numbered:
                raise PlanError(
                    f"{self.old.path} was made with --pbc nojump, which follows atoms from the "
                    "first frame on; convert all files together again"
                )
            if fits_frame(transformed) and not self.numbered:
                raise PlanError(
                    f"{self.old.path} was made with --fit to a frame of its source; convert all "
                    "files together again, or name a file with --fit-reference from the beginning"
                )
            transformed_source = TransformedLayout(
                path, source=source, top=options.sources.top, **transformed
            )
        frames: Any = None
        if self.numbered:
            frames = range(
                *slice(
                    options.selection.start, options.selection.stop, options.selection.step
                ).indices(info.n_frames)
            )
        elif self.stride_ps:
            dt_ps, first_ps = self.stride_ps, self.old.info.time_first_ps
            steps = np.ceil((info.time_first_ps - first_ps) / dt_ps - 1e-3)
            begin_ps = first_ps + steps * dt_ps
            if begin_ps <= info.time_last_ps + 1e-3 * dt_ps:
                frames = select_frames(source, begin_ps=begin_ps, dt_ps=dt_ps)
            else:
                frames = range(0)
        self.transformed[path] = transformed_source, info.n_frames
        view = ViewLayout(path, source=transformed_source, frames=frames, atoms=atoms)
        self.frames_of[view] = info, np.asarray(view.frames)
        return view

    def _check_reference(self, transformed: Mapping[str, Any]) -> None:
        """Raise SourceError if the file that frames were fitted to has changed."""
        reference = transformed.get("fit_reference")
        state = fingerprint(reference) if isinstance(reference, str) else {"path": None}
        for recorded in self.manifest["source"].get("used", ()):
            same_path = recorded["path"] == state["path"]
            if same_path and contents_of(recorded) != contents_of(state):
                raise SourceError(
                    f"{reference}: was changed since the frames of {self.old.path} were fitted to "
                    "it; put the former file back, or convert all files together again"
                )

    def check_same_source(self, path: Path) -> None:
        """Compare the frames that the output has of a source with those in the source now."""
        before = indices_from_runs(self.manifest["frames"])
        transformed_source, n_frames = self.transformed[path]
        if len(before) and int(before.max()) >= n_frames:
            raise SourceError(
                f"{path}: has {n_frames:,} frames, and {self.old.path} has frames of it up to "
                f"number {int(before.max()):,}; give the file that it was made from"
            )
        view = ViewLayout(path, source=transformed_source, frames=before, atoms=self._atoms)
        is_known = is_unchanged_source(path, self.manifest["source"])
        old_numbers = np.arange(len(before))
        is_equal = Comparison(self.old, view).same(
            lambda first, n: self.old.read(first, first + n),
            lambda frames: np.diff(frames) == 1,
            view,
            old_numbers,
            old_numbers,
            FOLLOWED_NBYTES if is_known else COMPARED_NBYTES,
        )
        check_same_trajectory(path, self.old.path, is_equal, read_times(view))

    def _not_finite(self, n_taken: int) -> NotFinite | None:
        """Return the record of coordinates before frame `n_taken` that are not finite."""
        recorded = self.manifest.get("not_finite")
        if recorded is None or not n_taken:
            return None
        total, n_frames = NotFinite(**recorded), self.old.info.n_frames
        tail = None
        if n_taken < n_frames:
            tail = NotFinite.count_in(self.old.read(n_taken, n_frames).positions, n_taken)
        if tail is None:
            return total
        n_more = total.coordinates - tail.coordinates
        return (
            replace(total, coordinates=n_more, frames=total.frames - tail.frames)
            if n_more
            else None
        )

    def _source_with_flaws(self, new_lost: Sequence[Any], made_up: Sequence[str]) -> dict[str, Any]:
        """Return the manifest's ``source`` with the flaws of the frames added."""
        source = dict(self.manifest["source"])
        lost_bytes = [*source.pop("lost", []), *map(asdict, new_lost)]
        if lost_bytes and not self.options.running.growing:
            source["lost"] = lost_bytes
        if texts := dict.fromkeys([*source.get("made_up", ()), *made_up]):
            source["made_up"] = list(texts)
        return source

    def _origin(
        self, chain: ChainLayout, timeline: Timeline, sources: Mapping[Layout, Path]
    ) -> Origin:
        """Return the new ``source`` of the manifest, and the frames that the output has of it."""
        added = timeline.members[1:]
        for member, numbers in zip(added, timeline.numbers[1:], strict=True):
            if (numbers < 0).any() or not Comparison(self.old, member).is_exact:
                continue
            path, old_source = sources[member], self.manifest["source"]
            has_grown = "files" not in old_source and is_unchanged_source(path, old_source)
            # Files of the same positions may differ in the last digits of boxes and times.
            if has_grown or read_columns(chain) == read_columns(member).frames(numbers):
                numbers = self.frames_of[member][1][numbers]
                return self._origin_of_one(path, member, numbers)
        if timeline.unit == "frames":
            return self._origin_of_all(chain, sources)
        # Frame numbers in several files help nobody: times, or steps, do.
        source = self._with_files(chain, sources) | {"n_frames": chain.info.n_frames}
        source["joined"] = {"overlap": self.options.sources.overlap, "matched": timeline.unit}
        step = max((step for *_, step in self.manifest["frames"]), default=1)
        return source, [[0, chain.info.n_frames * step, step]]

    def _origin_of_one(self, path: Path, member: Layout, numbers: NDArray[np.int64]) -> Origin:
        """Return `_origin` for an output whose frames are all from one file."""
        info, _ = self.frames_of[member]
        other_source_keys = ("files", "joined", "by_program", "lost", "made_up", *DAMAGE_KEYS)
        old_source = self.manifest["source"].items()
        source = {key: value for key, value in old_source if key not in other_source_keys}
        if info.lost and not self.options.running.growing:
            source["lost"] = list(map(asdict, info.lost))
        if info.made_up:
            source["made_up"] = list(info.made_up)
        source |= fingerprint(path) | {"layout": info.layout, "n_frames": info.n_frames}
        return source, runs_from_indices(numbers)

    def _with_files(self, chain: ChainLayout, sources: Mapping[Layout, Path]) -> dict[str, Any]:
        prints = [fingerprint(path) for path in sources.values()]
        source = self._source_with_flaws(chain.info.lost, chain.info.made_up)
        first_file = {name: source.pop(name) for name in prints[0] if name in source}
        by_program = np.concatenate(
            [
                self.by_program[start:stop] if layout is self.old else np.zeros(stop - start, bool)
                for layout, start, stop in chain.joined_layouts
            ]
        )
        source.pop("by_program", None)
        if by_program.any():
            source["by_program"] = runs_from_indices(np.flatnonzero(by_program))
        files = [*source.get("files", [first_file] if first_file else []), *prints]
        return source | {"path": files[0]["path"], "files": files}

    def _origin_of_all(self, chain: ChainLayout, sources: Mapping[Layout, Path]) -> Origin:
        """Return `_origin` for sources added as given, one after the other."""
        source = self._with_files(chain, sources)
        n_before = source["n_frames"] if "path" in self.manifest["source"] else 0
        frames = [self.before]
        for member, start, end in chain.joined_layouts[1:]:
            info, numbers = self.frames_of[member]
            frames.append(numbers[start:end] + n_before)
            n_before += info.n_frames
        source |= {"n_frames": n_before, "joined": {"overlap": KEEP_ALL}}
        return source, runs_from_indices(np.concatenate(frames))


def _begin(source: Layout) -> float:
    """Return the first time (or step) of a source, by which sources are sorted."""
    if source.stored_times.has_times:
        return source.info.time_first_ps
    return float(source.read(0, 1, atoms=[]).step[0])


class NothingToDo(Conversion):
    """An output that already has all frames to be added: it is not changed."""

    @property
    def n_taken(self) -> int:
        """All frames."""
        return self.plan.n_frames

    def run(self, executor: Executor, **_: Any) -> ConvertResult:
        """Return the result of writing nothing."""
        self.view.close()
        done = {"nbytes_out": 0, "seconds": 0.0, "workers": executor.n_workers}
        return self.job.result(self.plan, **done, found_complete=True)
