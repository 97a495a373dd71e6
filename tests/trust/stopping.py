"""``python stopping.py HOW PIECES WORDS...``: the command line, ended after so many pieces.

HOW is ``kill``, ``term``, ``int`` (signals), ``full`` (no space left), ``never``, or ``long``: then
who has the piece after so many takes an hour for it. Pieces are small and are flushed within 10 ms,
so that some of what can be gone on with is flushed and some is not.
"""

import errno
import os
import signal
import sys
import time

from mdio.cli.main import main
from mdio.converters.strategies.conversion import Conversion
from mdio.converters.strategies.write_tasks import WriteTaskWorker
from mdio.core.files import journal
from mdio.layouts import plan
from mdio.layouts.native import encoder

SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT}
PIECE_NBYTES = 1 << 18


class LongTask(WriteTaskWorker):
    def __init__(self, source, writer, after: int) -> None:
        super().__init__(source, writer)
        self.long = writer.plan.write_tasks()[after]

    def __call__(self, piece):
        if piece == self.long:
            time.sleep(3600)
        return super().__call__(piece)


def stop(how: str, after: int, flush_s: float = 0.01) -> None:
    """Have this process, and those that it forks, make small pieces, and end so."""
    plan.MIN_PIECE_NBYTES = encoder.DECODED_PIECE_NBYTES = PIECE_NBYTES
    journal.FLUSH_INTERVAL_S = flush_s
    add, count = journal.Journal.add, 0

    def counted(self, *words) -> None:
        nonlocal count
        add(self, *words)
        count += 1
        if count == after and how == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if count == after:
            os.kill(os.getpid(), SIGNALS[how])

    if how == "long":
        Conversion._create_worker = lambda self, writer: LongTask(self.view, writer, after)
    elif how != "never":
        journal.Journal.add = counted


if __name__ == "__main__":
    stop(sys.argv[1], int(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
