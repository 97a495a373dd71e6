"""A layout of mdio in a package of its own: a line of JSON for each frame."""

import json

from mdio.core.errors import OutputError, SourceError
from mdio.core.files.publish import output_errors
from mdio.core.frames import TrajectoryInfo
from mdio.layouts.base import FormatFacts, Layout
from mdio.layouts.plan import LayoutPlan
from mdio.layouts.writer import EncodedChunk, LayoutWriter


class LinesLayout(Layout):
    """Reads ``NAME.lines``."""

    name = "lines"
    facts = FormatFacts(suffixes=(".lines",), writer="mdio_lines:LinesWriter")

    @classmethod
    def sniff(cls, path):
        """Return whether the first line is that of a frame."""
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(9) == b'{"time": '

    def _open(self):
        with self.path.open("rb") as file:
            self._starts = [0]
            for line in file:
                self._starts.append(self._starts[-1] + len(line))
        first, second, last = (self._frame(i) for i in (0, min(1, len(self._starts) - 2), -2))
        return TrajectoryInfo(
            layout=self.name,
            path=str(self.path),
            n_frames=len(self._starts) - 1,
            n_atoms=len(first["positions"]),
            dt_ps=second["time"] - first["time"] or 1.0,
            time_first_ps=first["time"],
            time_last_ps=last["time"],
            has_box=any(first["box"]),
            nbytes=self._starts[-1],
        )

    def _frame(self, number):
        with self.path.open("rb") as file:
            file.seek(self._starts[number])
            try:
                return json.loads(file.readline())
            except ValueError as error:
                raise SourceError(f"{self.path}: frame {number} is damaged ({error})") from error

    def _read_into(self, start, stop, atoms, block):
        for row, number in enumerate(range(start, stop)):
            frame = self._frame(number)
            block.time[row], block.step[row] = frame["time"], frame["step"]
            block.box[row] = frame["box"]
            picked = range(len(frame["positions"])) if atoms is None else atoms
            for column, atom in enumerate(picked):
                block.positions[row, column] = frame["positions"][atom]


class LinesWriter(LayoutWriter):
    """Writes ``NAME.lines``; its owner keeps the pieces until they can be written in order."""

    @classmethod
    def plan_for(cls, info, options):  # noqa: ARG003
        """Plan a file whose lines are made 100 frames at a time."""
        nbytes = info.n_frames * (100 + 60 * info.n_atoms)
        return LayoutPlan("lines", info.n_frames, info.n_atoms, piece_frames=100, nbytes=nbytes)

    def create(self):
        """Make the file."""
        self.path.touch(exist_ok=False)
        self._pieces = {}

    def encode(self, start, block):
        """Return the lines of some frames."""
        names = ("time", "step", "box", "positions")
        rows = zip(*(getattr(block, name).tolist() for name in names), strict=True)
        lines = [json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows]
        return [EncodedChunk(str(start), "".join(lines).encode(), [])]

    def store(self, item):
        """Keep the lines of a piece."""
        self._pieces[int(item.key)] = item.data

    def commit(self, record):
        """Do nothing: what is in a record is in the lines too."""

    def finish(self):
        """Write the lines in order."""
        missing = [piece for piece in self.plan.write_tasks() if piece[0] not in self._pieces]
        if missing:
            raise OutputError(f"{self.path}: frames {missing[0]} are missing; convert again")
        with output_errors(self.path), self.path.open("wb") as file:
            for start in sorted(self._pieces):
                file.write(self._pieces[start])
