"""Frames of a continuation, added to an output of mdio."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mdio.converters.opening import changed_at
from mdio.converters.options import ConversionOptions
from mdio.converters.periodic.layout import TransformedLayout
from mdio.converters.provenance import Appended
from mdio.converters.selection import AtomChoice, check_whole, open_with_topology
from mdio.converters.storage import StripeRequest
from mdio.converters.strategies.choice import choose
from mdio.converters.strategies.conversion import Conversion
from mdio.converters.strategies.job import Job
from mdio.core.errors import PlanError, SourceError
from mdio.core.files.fingerprint import SourceStates, fingerprint
from mdio.core.files.publish import settle
from mdio.core.files.remote.paths import is_remote, path_of
from mdio.core.files.turns import State, state_at
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.base import Layout
from mdio.layouts.continuing.continuation import continuation_of
from mdio.layouts.manifest import has_source_integers, indices_from_runs, runs_from_indices
from mdio.layouts.output import NotFinite
from mdio.layouts.registry import open_layout, writer_class
from mdio.layouts.views import KEEP_ALL
from mdio.layouts.views.chain import ChainLayout
from mdio.layouts.views.joining import ROUNDING
from mdio.layouts.views.view import ViewLayout, select_frames
from mdio.parallel.executors import Executor

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]
OWN = {"append", "growing", "overlap", "salvage", "start", "step", "stop", "to", "top", "verify"}
"""Options that do not follow from the output."""
DEFAULT = ConversionOptions()
SAME_ANGSTROM = 0.02
"""So far apart a frame and what was made of it may be, besides what its precision allows: formats
round. Frames of a simulation are further apart."""


def prepare_append(
    sources: Paths, out: str | PathLike[str], options: ConversionOptions, executor: Executor
) -> Conversion:
    """Plan an output of what `out` holds, and of what `sources` add to it.

    Frames that `out` has already are found by their times, known by their coordinates, and left
    out. Of others for the same times the continuation's are taken, or what `options.overlap` says,
    as where files are joined.

    Raises PlanError: `out` is none of mdio's that frames can be added to; an option that follows
    from it. SourceError: a source does not fit, or adds nothing.
    """
    for one in fields(options):
        asked = getattr(options, one.name)
        if one.name not in OWN and asked and asked != getattr(DEFAULT, one.name):
            name = one.name.removesuffix("_ps").replace("_", "-")
            raise PlanError(
                f"{out}: frames are added as those that are there were written, so leave out "
                f"--{name}; to change it, convert all sources together again"
            )
    out = changed_at(out)
    settle(out)
    former = None if is_remote(out) else state_at(out)
    old = open_layout(out, verify=options.verify)
    try:
        continuation_of(old, 0)
        files = [sources] if isinstance(sources, str | PathLike) else list(sources)
        return _Plan(old, former, [path_of(file) for file in files], options).make(executor)
    except BaseException:
        old.close()
        raise


class _Plan:
    def __init__(
        self, old: Layout, former: State | None, files: Sequence[Path], options: ConversionOptions
    ) -> None:
        assert old.manifest is not None
        self.old, self.former, self.files, self.options = old, former, files, options
        self.manifest = old.manifest
        self.notes: list[str] = []
        self.frames_of: dict[Layout, tuple[TrajectoryInfo, NDArray[np.int64]]] = {}
        """What is in the file of which each source is a view, and the frames that it has of it."""
        self.numbered = options.start is not None
        """Whether the frames to add are told by number, as of a file that is followed."""
        strided = any(step > 1 for *_, step in self.manifest["frames"])
        self.stride_ps = float(self.manifest["dt_ps"]) if strided else None
        """Time between frames, where the output has but some of its source's."""

    def make(self, executor: Executor) -> Conversion:
        old, options = self.old, self.options
        sources = [self._source(path) for path in self.files]
        # What replaces an output on disk looks at it itself, in the moment when it does.
        read = [*self.files, *[old.path] * (self.former is None)]
        states = SourceStates(read, may_grow=self._may_grow(sources))
        as_given = self.numbered or options.overlap is not None
        members = sources if as_given else [self._unseen(source) for source in sources]
        new = {member: file for member, file in zip(members, self.files, strict=True) if member}
        if not new:
            raise SourceError(
                f"{self.files[-1]}: nothing to add: {old.path} already has all of its frames, "
                f"up to {old.info.time_last_ps:g} ps"
            )
        overlap = KEEP_ALL if self.numbered else options.overlap
        chain = ChainLayout([old, *new], overlap=overlap)
        info = chain.info.replace(
            has_velocities=old.info.has_velocities, has_forces=old.info.has_forces
        )
        (first, start, stop), *added = chain.kept
        if first is not old or start or not added:
            raise SourceError(
                f"{first.path}: begins at {chain.info.time_first_ps:g} ps, before {old.path} does "
                f"(at {old.info.time_first_ps:g} ps); frames are added behind those that are "
                "there: convert all files together"
            )
        continuation = continuation_of(old, stop)
        plan = continuation.plan(info, executor.n_workers)
        n_added = info.n_frames - stop
        told = f"{n_added:,} frames added to {stop:,} of {old.info.n_frames:,} that were there"
        odd = self._not_finite(continuation.taken)
        stripe = self.manifest["stripe"]
        asked = (stripe["stripe_nbytes"], stripe["stripe_count"]) if stripe.get("asked") else ()
        groups = self.manifest["group_atoms"]
        job = Job(
            out=old.path,
            files=list(new.values()),
            view=ViewLayout(old.path, source=chain),
            choice=AtomChoice(
                None, self._atoms, {name: indices_from_runs(runs) for name, runs in groups.items()}
            ),
            plan=plan.replace(notes=(*plan.notes, told, *self.notes, *chain.notes)),
            writer=writer_class(old.name),
            options=options,
            striping=StripeRequest(*asked),
            nbytes_in=sum(self.frames_of[member][0].nbytes for member in new),
            transformed=self.manifest["source"].get("transformed"),
            topology=old.topology(),
            appended=Appended(continuation, *self._origin(chain, new), odd),
            former=self.former,
        )
        conversion = choose(job, executor)
        conversion.states = states
        return conversion

    @property
    def _atoms(self) -> Any:
        runs = self.manifest["atoms"]
        return None if runs is None else indices_from_runs(runs)

    def _source(self, path: Path) -> Layout:
        """Open a source as the output has its own: its atoms, its part of the frames."""
        options, manifest = self.options, self.manifest
        source = open_with_topology(path, options.top, verify=options.verify)
        info, atoms = source.info, self._atoms
        n_atoms = manifest["source"].get("n_atoms", manifest["n_atoms"] if atoms is None else None)
        if info.n_atoms != n_atoms if n_atoms is not None else atoms.max() >= info.n_atoms:
            raise SourceError(
                f"{path}: has {info.n_atoms} atoms, but {self.old.path} was made from a trajectory "
                f"of {n_atoms or f'at least {atoms.max() + 1}'}; give what continues that one"
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
        if not options.salvage and not options.growing:
            check_whole(info, options.stop, None)
        for name in ("velocities", "forces"):
            theirs = getattr(self.old.info, f"has_{name}")
            if theirs != getattr(info, f"has_{name}"):
                what = "NaN in the frames added" if theirs else "left out"
                less = path if theirs else self.old.path
                self.notes.append(f"{less}: has no {name}: {what}")
        whole: Layout = source
        if transformed := manifest["source"].get("transformed"):
            if transformed["pbc"] == "nojump" and not self.numbered:
                raise PlanError(
                    f"{self.old.path} was made with --pbc nojump, which follows atoms from the "
                    "first frame on; convert all files together again"
                )
            whole = TransformedLayout(path, source=source, top=options.top, **transformed)
        frames: Any = None
        if self.numbered:
            frames = range(*slice(options.start, options.stop, options.step).indices(info.n_frames))
        elif self.stride_ps:
            dt_ps, last_ps = self.stride_ps, self.old.info.time_last_ps
            steps = max(1, np.ceil((info.time_first_ps - last_ps) / dt_ps - 1e-3))
            frames = select_frames(source, begin_ps=last_ps + steps * dt_ps, dt_ps=dt_ps)
        view = ViewLayout(path, source=whole, frames=frames, atoms=atoms)
        self.frames_of[view] = info, np.asarray(view.frames)
        return view

    def _may_grow(self, sources: Sequence[Layout]) -> bool:
        """Whether a source may be written on: only whole frames that are there are taken."""
        return self.options.growing or any(source.info.lost for source in sources)

    def _unseen(self, source: Layout) -> Layout | None:
        """Return the frames of a source that the output does not have; None if it has all."""
        mine, theirs = source.info, self.old.info
        end_ps = min(mine.time_last_ps, theirs.time_last_ps)
        here, there = _frame_at(source, end_ps), _frame_at(self.old, end_ps)
        if here is None or there is None or not self._same(source, here, there):
            return source
        if here + 1 == mine.n_frames:
            self.notes.append(f"{mine.path}: left out, since {self.old.path} has it already")
            return None
        if there + 1 < theirs.n_frames:
            return source
        self.notes.append(f"{mine.path}: {self.old.path} has its frames up to {end_ps:g} ps")
        rest = range(here + 1, mine.n_frames)
        view = ViewLayout(source.path, source=source, frames=rest)
        info, numbers = self.frames_of[source]
        self.frames_of[view] = info, numbers[rest.start :]
        return view

    def _same(self, source: Layout, here: int, there: int) -> bool:
        a = source.read(here, here + 1).positions
        b = self.old.read(there, there + 1).positions
        bound = SAME_ANGSTROM + float(self.manifest["error_bound_angstrom"])
        return bool(np.allclose(a, b, rtol=0, atol=bound, equal_nan=True))

    def _not_finite(self, taken: int) -> NotFinite | None:
        """Return what is known of coordinates before frame `taken` that are no numbers."""
        known = self.manifest.get("not_finite")
        if known is None or not taken:
            return None
        total, n_frames = NotFinite(**known), self.old.info.n_frames
        tail = None
        if taken < n_frames:
            tail = NotFinite.among(self.old.read(taken, n_frames).positions, taken)
        if tail is None:
            return total
        n_more = total.coordinates - tail.coordinates
        return (
            replace(total, coordinates=n_more, frames=total.frames - tail.frames)
            if n_more
            else None
        )

    def _origin(
        self, chain: ChainLayout, files: dict[Layout, Path]
    ) -> tuple[dict[str, Any], list[list[int]]]:
        """Return what the output is to say of its source, and which frames of it it has."""
        source = dict(self.manifest["source"])
        (_, _, stop), *added = chain.kept
        before = indices_from_runs(self.manifest["frames"])[:stop]
        prints = [fingerprint(path) for path in files.values()]
        lost = [*source.get("lost", []), *(asdict(one) for one in chain.info.lost)]
        source.pop("lost", None)
        if lost and not self.options.growing:
            source["lost"] = lost
        if made_up := dict.fromkeys([*source.get("made_up", ()), *chain.info.made_up]):
            source["made_up"] = list(made_up)
        if len(prints) == 1 and "files" not in source and prints[0]["path"] == source["path"]:
            ((member, start, end),) = added
            info, numbers = self.frames_of[member]
            source |= prints[0] | {"n_frames": info.n_frames}
            return source, runs_from_indices([*before, *numbers[start:end]])
        own = {name: source.pop(name) for name in prints[0] if name in source}
        at = source["n_frames"] if stop == self.old.info.n_frames else int(before[-1]) + 1
        frames = [before]
        for member, start, end in added:
            info, numbers = self.frames_of[member]
            numbers = numbers[start:end]
            begin, last = int(numbers[0]), int(numbers[-1]) + 1
            if self.stride_ps:
                begin, last = 0, info.n_frames
            frames.append(numbers - begin + at)
            at += last - begin
        source |= {
            "path": own["path"],
            "files": [*source.get("files", [own]), *prints],
            "n_frames": at,
            "joined": {"overlap": self.options.overlap},
        }
        return source, runs_from_indices(np.concatenate(frames))


def _frame_at(layout: Layout, time_ps: float) -> int | None:
    """Return the frame of a time, if there is one, of a layout whose times ascend."""
    info = layout.info
    if not layout.has_times or not info.time_first_ps <= info.time_last_ps:
        return None
    slack = min(ROUNDING * abs(time_ps), abs(info.dt_ps) / 4 if info.n_frames > 1 else np.inf)

    def time_of(frame: int) -> float:
        return float(layout.read(frame, frame + 1, atoms=[]).time[0])

    frame = bisect_left(range(info.n_frames), time_ps - slack, key=time_of)
    found = frame < info.n_frames and abs(time_of(frame) - time_ps) <= slack
    return frame if found else None
