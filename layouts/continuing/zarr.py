"""Zarr trees that go on: full shards are taken over."""

from __future__ import annotations

import json

from mdio.core.files.regular import read_regular
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.continuing.continuation import Continuation
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.writer import LayoutWriter, PieceRecord
from mdio.layouts.zarr.layout import ZarrLayout
from mdio.layouts.zarr.own import OwnTree
from mdio.layouts.zarr.tree import METADATA, array_nodes, atom_arrays


class ZarrContinuation(Continuation):
    """A tree that goes on."""

    old: ZarrLayout

    @property
    def _tree(self) -> OwnTree:
        tree = self.old.contents
        assert isinstance(tree, OwnTree)
        return tree

    def plan(self, info: TrajectoryInfo) -> LayoutPlan:
        """Plan shards and chunks as they are; see the base class."""
        plan = self.planned(info)
        self._compare(plan.replace(n_frames=self.old.info.n_frames))
        self.taken = self.stop // plan.piece_frames * plan.piece_frames
        return plan

    def _compare(self, plan: LayoutPlan) -> None:
        """Refuse a tree that is not what this version would write; raises PlanError."""
        for path, node in array_nodes(plan).items():
            try:
                same = read_regular(self.old.path / path / METADATA) == json.dumps(node).encode()
            except OSError:
                same = False
            if not same:
                raise self.refuse()

    def take_over(self, writer: LayoutWriter) -> None:
        """Link the shards, and hand on their checksums."""
        plan = writer.plan
        for start in range(0, self.taken, plan.piece_frames):
            stop = start + plan.piece_frames
            crcs = {}
            for path, (array, metadata) in atom_arrays(plan).items():
                key = f"{path}/{metadata.file_name(start // plan.piece_frames)}"
                self.take(key, writer.path)
                checksums = self._tree.arrays[array.group, array.field].checksums
                crcs[key] = checksums.of_frames(start, stop, array.chunk_frames)
            block = self.old.read(start, stop, atoms=[])
            writer.commit(PieceRecord(start, stop, crcs, 0, block.box, block.time, block.step))
