"""``mdio``: finds the subcommand, runs it, turns errors into one line and an exit code.

Exit codes: 0 done; 1 the work failed (bad data, full disk, failed verify); 2 the command line is
wrong.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, cast

from mdio._version import __version__
from mdio.cli.shared.common import add
from mdio.cli.shared.help import FriendlyParser, examples, hint_for
from mdio.cli.shared.ranks import launched_ranks, parse_once
from mdio.core.errors import MdioError, MissingExtensionError, PlanError
from mdio.core.words import did_you_mean, without_passwords

STALL_TIMEOUT_S = 60.0

COMMANDS = {
    "info": "show what a trajectory contains",
    "convert": "convert to zarr, h5md, segments or a native file, in parallel",
    "append": "add the frames of a continuation to an output",
    "split": "split into segments by copying bytes",
    "verify": "check an output's checksums, or compare it with its source frame by frame",
    "repair": "rewrite the damaged parts of an output from its source, or list what is lost",
    "analyze": "run RMSD, dihedrals or a function of your own over all frames, in parallel",
    "cache": "inspect, check and clean the node-local caches of trajectories",
    "mapreduce": "map frames to keys and values and reduce the values of each key, in parallel",
    "bench": "measure how an analysis scales on this machine",
    "advise": "measure here which layout is best for an analysis",
    "model": "fit a machine profile to timings; predict how an analysis scales",
}
"""Each is a module of `mdio.cli` with ``setup(parser)``, ``run(args)``, and ``COMMON`` where its
help begins with some options."""

ALL = "*"
"""In place of a command: the options of all."""


def _parser(command: str | None, *, alone: bool = False) -> FriendlyParser:
    """Return the parser, with the options of one command, which may be the only one: `alone`.

    To make a parser for each takes time.
    """
    parser = FriendlyParser(
        prog="mdio",
        description="Molecular-dynamics trajectories in layouts that read fast, in parallel.",
        epilog="mdio COMMAND --help lists the options of a command; mdio alone shows examples.",
    )
    parser.add_argument("--version", action="version", version=f"mdio {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        if alone and name != command:
            continue
        chosen = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        if name == command or command == ALL:
            module = import_module(f"mdio.cli.{name}")
            module.setup(chosen)
            add(chosen, "--debug", "show the traceback of an error")
            _add_stalls(chosen)
            chosen.show_first(getattr(module, "COMMON", ()))
    return parser


def command_help(name: str) -> str:
    """Return what ``mdio NAME --help-all`` prints."""
    return _command(_parser(name), name).format_all()


def _command(parser: FriendlyParser, name: str) -> FriendlyParser:
    commands = next(action.choices for action in parser._actions if action.dest == "command")
    return cast(FriendlyParser, cast(dict[str, Any], commands)[name])


def _add_stalls(parser: argparse.ArgumentParser) -> None:
    add(
        parser,
        "--stall-timeout S",
        "report a read or write that takes longer, s (default: %(default)g; 0: never)",
        float,
        default=STALL_TIMEOUT_S,
    )
    add(parser, "--stall-abort S", "end the program when one takes longer, s", float)


@contextmanager
def _stalls_told(args: argparse.Namespace) -> Iterator[None]:
    """Watch for storage that does not answer, for as long as a command runs."""
    timeout_s, abort_s = args.stall_timeout, args.stall_abort
    if timeout_s <= 0 and abort_s is None:
        yield
        return
    from mdio.core.stalls import StallWatch

    watch = StallWatch(timeout_s if timeout_s > 0 else abort_s, abort_s)
    try:
        yield
    finally:
        watch.stop()


BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


def _import_numpy(words: Sequence[str]) -> None:
    """Import NumPy so that OpenBLAS starts no threads, unless a user's function may want them.

    It starts one for each core, and for as long as most commands take each looks for work, of which
    no kernel of mdio has any.
    """
    if (
        "numpy" in sys.modules
        or _runs_code_of_user(words)
        or any(name in os.environ for name in BLAS_THREADS)
    ):
        return
    os.environ[BLAS_THREADS[0]] = "1"
    try:
        import_module("numpy")
    finally:
        del os.environ[BLAS_THREADS[0]]  # it is read once; programs that are started get none


def _runs_code_of_user(words: Sequence[str]) -> bool:
    return any(":" in word for word in words)  # module:function


def _notes(end: BaseException) -> str:
    """Return what was added to an exception: what of the work is kept."""
    return "; ".join(getattr(end, "__notes__", ()))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name); return the exit code."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(_parser(ALL))
    if argv is not None:
        return _run(list(argv))
    if not _runs_code_of_user(sys.argv):  # which may leave files open, to be flushed at the end
        atexit.register(gc.freeze)  # what goes with the process need not be looked through
    try:
        code: Any = _run(sys.argv[1:])
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt:  # while a command is imported
        print("mdio: interrupted; nothing was done yet", file=sys.stderr)
        code = 130
    except BaseException:
        if "mpi4py.MPI" not in sys.modules:
            raise
        sys.excepthook(*sys.exc_info())
        code = 1
    if "mpi4py.MPI" not in sys.modules:
        raise SystemExit(code)
    from mdio.cli.shared.ending import end_mpi

    if code is not None and not isinstance(code, int):  # as Python would when it ends
        print(code, file=sys.stderr)
        code = 1
    raise SystemExit(end_mpi(code or 0))


def _run(words: list[str]) -> int:
    if not words:
        print(examples())
        return 0
    command = next((word for word in words if not word.startswith("-")), None)
    if command in COMMANDS:
        _import_numpy(words)
    with parse_once(words):
        try:
            parser = _parser(command, alone=words[0] == command in COMMANDS)
        except MissingExtensionError as error:
            print(f"mdio: {error}", file=sys.stderr)
            return 1
        if command is not None and command not in COMMANDS:
            hint = did_you_mean(command, COMMANDS)
            parser.error(f"no command {command!r}{hint}; the commands are {', '.join(COMMANDS)}")
        args, unknown = parser.parse_known_args(words)
        if unknown:
            parser.prog = f"mdio {args.command}"  # argparse would name the program alone
            hint = hint_for(unknown[0], _command(parser, args.command))
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        shares = getattr(args, "executor", "mpi") == "mpi" or getattr(args, "mpi", False)
        if not shares and (n_ranks := launched_ranks()) > 1:
            parser.error(
                f"{n_ranks} MPI ranks were started, and each would do all of the work; add "
                "--mpi, or start mdio without mpiexec"
            )
    try:
        with _stalls_told(args):
            return int(import_module(f"mdio.cli.{args.command}").run(args))
    except MdioError as error:
        if args.debug:
            raise
        text = " ".join(str(error).split())
        if isinstance(error.__cause__, MemoryError):
            text = f"{text.partition(': MemoryError')[0]}: {out_of_memory(error.__cause__)}"
        print(f"mdio {args.command}: {text}", file=sys.stderr)
        return 2 if isinstance(error, PlanError) else 1
    except KeyboardInterrupt as end:
        left = _notes(end) or "nothing half-written is left"
        print(f"mdio {args.command}: interrupted; {left}", file=sys.stderr)
        return 130
    except SystemExit as end:
        if _notes(end):
            print(f"mdio {args.command}: ended by a signal; {_notes(end)}", file=sys.stderr)
        raise
    except BrokenPipeError:
        # The reader of our output has gone (``mdio info x | head -1``): nothing more to say to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, MemoryError, ImportError) as error:
        if args.debug or (isinstance(error, ImportError) and not _lacks_memory(error)):
            raise
        if isinstance(error, MemoryError | ImportError):
            said = f"mdio {args.command}: {out_of_memory(error)}"
        else:
            from mdio.core.stalls import lost_on

            text = without_passwords(str(error)) or type(error).__name__
            said = f"mdio {args.command}{lost_on(error)}: {text}"
        print(said, file=sys.stderr)
        return 1


def _lacks_memory(error: ImportError) -> bool:
    """Return whether a library could not be loaded since there was no room for it."""
    return any(text in str(error) for text in ("Cannot allocate memory", "failed to map segment"))


WHILE_READING = {
    "topology": ("parse", "_read_topology", "topology_of", "universe_of"),
    "trajectory": ("_read_into", "read", "_open", "read_frame"),
}
"""What is read, by functions that do."""


def out_of_memory(error: BaseException) -> str:
    """Return what to tell of a MemoryError, or a library that memory was too short for."""
    if isinstance(error, ImportError):
        doing = f"loading {error.name or 'a library'}"
    else:
        names, trace = set(), error.__traceback__
        while trace is not None:
            names.add(trace.tb_frame.f_code.co_name)
            trace = trace.tb_next
        found = (what for what, functions in WHILE_READING.items() if names & set(functions))
        doing = f"reading the {what}" if (what := next(found, None)) else "working"
    detail = f" ({error})" if str(error) and isinstance(error, MemoryError) else ""
    return (
        f"out of memory while {doing}{detail}; select fewer atoms, take fewer workers (-w), or a "
        "machine with more"
    )


if __name__ == "__main__":
    sys.exit(main())
