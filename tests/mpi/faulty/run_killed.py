"""The command line as each rank runs it, but all ranks get a signal at one of a rank's calls.

``run_killed.py RANK CALL SIGNAL WORDS...``: KILL is what a machine that goes down is to all of
them, TERM what a queue sends before a job's time is up. Calls are
those that Python's audit hooks tell of (files opened, renamed, removed) in the folders of WORDS,
whatever is imported meanwhile. Where the conversion ends first, the rank says ``N calls`` on
stderr; CALL 0 never comes.
"""

import os
import signal
import sys
from pathlib import Path

from mpi4py import MPI

from mdio.cli.main import main

if __name__ == "__main__":
    rank, call, number = int(sys.argv[1]), int(sys.argv[2]), signal.Signals[f"SIG{sys.argv[3]}"]
    others = MPI.COMM_WORLD.allgather(os.getpid())
    others.remove(os.getpid())
    watched, count = rank == MPI.COMM_WORLD.rank, 0
    folders = tuple({str(Path(word).parent) for word in sys.argv[4:] if os.sep in word})

    def hook(event, args):
        global count
        if event.partition(".")[0] not in ("open", "os", "shutil"):
            return
        if any(str(arg).startswith(folders) for arg in args):
            count += 1
            if count == call:
                for pid in [*others, os.getpid()]:
                    os.kill(pid, number)

    if watched:
        sys.addaudithook(hook)
    code = main(sys.argv[4:])
    if watched:
        print(f"{count} calls", file=sys.stderr)
    sys.exit(code)
