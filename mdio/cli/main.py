"""``mdio``: runs a subcommand, and turns errors into one line and an exit code.

Exit codes: 0 done; 1 the work failed (bad data, full disk, failed verify); 2 the command line is
wrong.

Under MPI all ranks end together, with one exit code. MPI_Finalize of MPICH 4 with UCX over TCP
sometimes hangs. Ranks that Hydra (MPICH's mpiexec) has started therefore report their end to it
themselves (PMI-1, the wire protocol of MPICH's process managers: `cmd=barrier_in`, `cmd=finalize`),
and exit without MPI_Finalize. Under other launchers it is called, with a time limit.

Help fits a screen: ``--help`` shows common options, ``--help-all`` all of them.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import gc
import io
import math
import os
import re
import select
import sys
import time
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from importlib import import_module
from threading import Timer
from typing import Any, NoReturn, cast

from mdio._version import __version__
from mdio.cli.common import add, parse_seconds
from mdio.cli.workers import (
    chosen_executor,
    executor_name,
    launched_rank,
    n_launched_ranks,
    rank_0_parser_messages,
)
from mdio.core.errors import MdioError, MissingExtensionError, PlanError
from mdio.core.signals import signals_as_exceptions
from mdio.core.words import did_you_mean, list_text, without_passwords

EXAMPLES = (
    ("what is in a file", "mdio info md.xtc"),
    ("rewrite it for fast, parallel reading", "mdio convert md.xtc md.zarr -s md.tpr -w 4"),
    ("is it still whole?", "mdio verify md.zarr --against md.xtc"),
    (
        "analyse it in parallel",
        'mdio analyze rmsd md.zarr -s md.tpr --select "name CA" -w 4 -o rmsd.xvg',
    ),
    ("which layout is best here?", "mdio advise md.xtc -s md.tpr --ranks 16 --passes 20"),
)


OTHER_NAMES = {
    "--layout": "--to",
    "--topology": "--top",
    "-o": "--out",
    "--output": "--out",
    "-j": "--workers",
    "--n-jobs": "--workers",
    "--n-workers": "--workers",
    "--threads": "--workers",
    "--backend": "--executor",
    "--overwrite": "--force",
    "--skip": "--step",
    "--stride": "--step",
    "--chunks": "--chunk-frames",
    "--source": "--against",
    "--reference": "--ref-frame",
    "--kernel": "--analysis",
}
"""Options of mdio by their names in other programs, if the spelling does not suggest them."""

OTHER_VALUES = {"multiprocessing": "processes", "distributed": "dask", "none": "serial"}
BENCH_SCRIPTS = {name: name for name in ("layouts", "gather", "scheduler")}
BENCH_SCRIPTS["darshan"] = "darshan_log"
"""Scripts in the sources, by their names as benches in earlier versions."""


def hint_at_option(option: str, parser: argparse.ArgumentParser) -> str:
    """Return a hint naming the option of `parser` that an unknown option may mean."""
    option = option.partition("=")[0]
    options, suggestion = parser._option_string_actions, OTHER_NAMES.get(option, option)
    if suggestion == "--out" != option and suggestion not in options:
        has_out = any(action.dest == "out" for action in parser._get_positional_actions())
        return " (give the output last, without an option)" if has_out else ""
    if option in options:
        return f" (it goes after the command: {parser.prog} {option} ...)"
    if suggestion in options:
        return f" (did you mean {suggestion!r}?)"
    if option in OTHER_NAMES or len(option) == 2:
        return ""
    return did_you_mean(option, options) or _hint_at_commands(option)


def _hint_at_commands(option: str) -> str:
    """Return a hint at the commands that have an option."""
    commands = [
        name
        for name in COMMANDS
        if option in _command_parser(_parser(name, is_single=True), name)._option_string_actions
    ]
    return f" (it is an option of mdio {list_text(commands)})" if commands else ""


def examples() -> str:
    """Return the five commands that people use most, with an example each."""
    lines = ["mdio: molecular-dynamics trajectories in layouts that read fast, in parallel", ""]
    for purpose, command in EXAMPLES:
        lines += [f"  {purpose}", f"    {command}"]
    footer = "mdio --help lists all commands, mdio COMMAND --help the options of one"
    return "\n".join([*lines, "", footer])


class FriendlyParser(argparse.ArgumentParser):
    """A parser with errors of one line, and a help that can hide options."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and one line."""
        if message.startswith("the following arguments are required"):
            actions = self._get_positional_actions()
            options = [option for option in self._actions if option.option_strings]
            required = [f"{o.option_strings[-1]} {o.metavar}" for o in options if o.required]
            words = [self.prog, *map(_argument_text, actions), *required]
            message += f"; write {' '.join(words)}"
            if actions and isinstance(actions[-1], argparse._SubParsersAction):
                message += f", one of {', '.join(actions[-1].choices)}"
            for action in options:
                if action.nargs == "+":  # it takes all that follows it
                    option = f"{action.option_strings[-1]} {action.metavar}"
                    message += f" [{option} [{action.metavar} ...]], in this order"
        message = without_passwords(message)
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            choices = [str(choice) for choice in action.choices or ()]
            suggestion = OTHER_VALUES.get(value)
            hint = (
                f" (did you mean {suggestion!r}?)"
                if suggestion in choices
                else did_you_mean(value, choices)
            )
            if action.dest == "bench" and value in BENCH_SCRIPTS:
                hint = f" (in the sources: python bench/{BENCH_SCRIPTS[value]}.py)"
            error.message += hint
            raise

    def hide_options(self, common: Collection[str], *, show_all: bool) -> None:
        """Hide all options except `common` in help; `show_all`: hide none."""
        if not common:
            self.add_argument("--help-all", action="help", help=argparse.SUPPRESS)
            for action in self._actions:
                if isinstance(action, argparse._SubParsersAction):
                    for parser in action.choices.values():
                        parser.hide_options((), show_all=show_all)
            return
        visible_options = {*common, "-h"}
        self.add_argument("--help-all", action="help", help="show all options and exit")
        if show_all:
            return
        self.epilog = f"{self.prog} --help-all lists all options."
        for action in self._actions[:-1]:
            if action.option_strings and not visible_options & {*action.option_strings}:
                action.help = argparse.SUPPRESS
        arguments = map(_argument_text, self._get_positional_actions())
        self.usage = " ".join([self.prog, *arguments, "[options]"])


def _argument_text(action: argparse.Action) -> str:
    name = str(action.metavar)
    return f"{name} [{name} ...]" if action.nargs == "+" else name


def _assign_files(parser: FriendlyParser, args: argparse.Namespace, files: list[str]) -> bool:
    """Add files that follow options to the argument that takes several; return whether one does.

    argparse fills it with the files before the first option, and the arguments after it with the
    next ones.
    """
    actions = parser._get_positional_actions()
    if not any(action.nargs == "+" for action in actions) or any(f[:1] == "-" for f in files):
        return False
    words_to_assign: list[str] = []
    for action in actions:
        value = getattr(args, action.dest)
        words_to_assign += value if isinstance(value, list) else [value]
    words_to_assign += files
    for number, action in enumerate(actions):
        n_words = len(words_to_assign) - (len(actions) - number - 1) if action.nargs == "+" else 1
        words, words_to_assign = words_to_assign[:n_words], words_to_assign[n_words:]
        setattr(args, action.dest, words if action.nargs == "+" else words[0])
    return True


MAX_RANKS_WAIT_S = 10.0
"""How long a rank that has failed waits for the others to end."""
MAX_FINALIZE_S = 2.0
"""Time limit of MPI_Finalize; then the process exits without it."""
MAX_ANSWER_S = 5.0
"""Time limit of an answer of Hydra."""
FILE_TYPES = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def end_mpi(code: int) -> int:
    """End MPI, if it was started, and return the largest exit code of all ranks.

    Does not return if the process exits without MPI_Finalize.
    """
    MPI: Any = sys.modules.get("mpi4py.MPI")  # noqa: N806
    if MPI is None or not MPI.Is_initialized() or MPI.Is_finalized():
        return code
    import numpy as np

    from mdio.parallel.sleeping import Backoff

    _flush_python()  # before the reduction, so that all ranks exit at the same time
    # All exit with one code, since the launcher sometimes loses that of rank 0. Ranks sleep
    # meanwhile, as rank 0 may still write. A rank that has failed alone ends the others.
    largest = np.array([code], np.int32)
    reduction = MPI.COMM_WORLD.Iallreduce(np.array([code], np.int32), largest, MPI.MAX)
    deadline = time.monotonic() + MAX_RANKS_WAIT_S if code else math.inf
    Backoff().wait_until(lambda: reduction.Test() or time.monotonic() > deadline)
    if not reduction.Test():
        os._exit(code)
    code = int(largest[0])
    launcher = _hydra_descriptor(MPI)
    if launcher is not None and _report_end(launcher, MPI.COMM_WORLD):
        os._exit(code)
    timer = Timer(MAX_FINALIZE_S, os._exit, (code,))
    timer.daemon = True
    timer.start()
    ctypes.CDLL(MPI.__file__).MPI_Finalize()  # mpi4py's would hold up all threads of Python
    timer.cancel()
    return code


def _hydra_descriptor(MPI: Any) -> int | None:  # noqa: N803
    """Return the descriptor on which Hydra speaks PMI-1 with this rank; None under others."""
    descriptor = os.environ.get("PMI_FD", "")
    library = MPI.Get_library_version()
    uses_pmi1 = library.startswith("MPICH") and "pmi2" not in library and "pmix" not in library
    # srun's PMI-2 has PMI_FD, too, but not MPI_LOCALNRANKS.
    if descriptor.isdecimal() and os.environ.get("MPI_LOCALNRANKS") and uses_pmi1:
        return int(descriptor)
    return None


def _report_end(launcher: int, comm: Any) -> bool:
    """Report the end of this rank to the launcher, as all ranks do; return whether it agreed."""
    try:
        # Messages of other ranks may still be in flight: all ranks serve MPI until the launcher
        # reports that all have reached the barrier.
        return _send_command(
            launcher, b"barrier_in", b"barrier_out", math.inf, comm.Iprobe
        ) and _send_command(launcher, b"finalize", b"finalize_ack", MAX_ANSWER_S)
    except OSError:
        return False


def _send_command(
    launcher: int, command: bytes, answer: bytes, timeout_s: float, poll: Any = None
) -> bool:
    """Send a command to the launcher; return whether `answer` came back within `timeout_s`."""
    os.write(launcher, b"cmd=%s\n" % command)
    deadline, line = time.monotonic() + timeout_s, b""
    while time.monotonic() < deadline and not line.endswith(b"\n"):
        if poll is not None:
            poll()
        if select.select([launcher], [], [], 0.001)[0]:
            byte = os.read(launcher, 1)
            if not byte:
                return False
            line += byte
    return b"cmd=" + answer in line


def _flush_python() -> None:
    """Run exit functions and flush files as Python does at exit, without those that call MPI."""
    atexit._run_exitfuncs()
    gc.unfreeze()
    for file in gc.get_objects():  # files that a user's function has left open
        if issubclass(type(file), FILE_TYPES):
            try:
                file.flush()
            except (OSError, ValueError):  # closed, or not for writing
                continue
    ctypes.CDLL(None).fflush(None)


STALL_TIMEOUT_S = 60.0

COMMANDS = {
    "info": "show what a trajectory contains",
    "convert": "convert to zarr, h5md, segments or a native file, in parallel",
    "append": "add the frames of a continuation to an output",
    "split": "split into segments: native files by copying bytes, others encoded as NetCDF or XTC",
    "verify": "check an output's checksums, or compare it with its source frame by frame",
    "repair": "rewrite the damaged parts of an output from its source, or list what is lost",
    "analyze": "run RMSD, dihedrals or a function of your own over all frames, in parallel",
    "cache": "inspect, check and clean the node-local caches of trajectories",
    "mapreduce": "map frames to keys and values and reduce the values of each key, in parallel",
    "bench": "measure how an analysis scales on this machine",
    "advise": "measure here which layout is best for an analysis",
    "model": "fit a machine profile to timings; predict how an analysis scales",
}
"""Commands and their help. Each is a module of `mdio.cli` with ``setup(parser)``, ``run(args)``
(``run(args, executor)`` if it has the options of `add_workers`), and, if ``--help`` shows only some
options, ``COMMON``."""

RANK_0_COMMANDS = ("info", "model")
"""Commands that rank 0 of MPI runs alone, if there are several ranks."""
ANY_RANK_COMMANDS = ("cache",)
"""Commands that every rank may run: each node has its own cache."""
ALL_COMMANDS = "*"
"""Stands for all commands."""


def _parser(
    command: str | None, *, is_single: bool = False, show_all: bool = False
) -> FriendlyParser:
    """Return the parser with the options of `command`; `is_single`: without other commands."""
    parser = FriendlyParser(
        prog="mdio",
        description="Molecular-dynamics trajectories in layouts that read fast, in parallel.",
        epilog="mdio COMMAND --help lists the options of a command; mdio alone shows examples.",
    )
    parser.add_argument("--version", action="version", version=f"mdio {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        if is_single and name != command:
            continue
        description = f"{text[0].upper()}{text[1:]}."
        command_parser = commands.add_parser(name, help=text, description=description)
        if name == command or command == ALL_COMMANDS:
            module = import_module(f"mdio.cli.{name}")
            module.setup(command_parser)
            add(command_parser, "--debug", "show the traceback of an error")
            text = "report a read or write that takes longer (default: %(default)g s; 0: never)"
            add(command_parser, "--stall-timeout T", text, parse_seconds, default=STALL_TIMEOUT_S)
            text = "end the program when one takes longer: 90, 90s, 10m (default: never)"
            add(command_parser, "--stall-abort T", text, parse_seconds)
            command_parser.hide_options(getattr(module, "COMMON", ()), show_all=show_all)
    return parser


def command_help(name: str) -> str:
    """Return the output of ``mdio NAME --help-all``."""
    return _command_parser(_parser(name, show_all=True), name).format_help()


def _command_parser(parser: FriendlyParser, name: str) -> FriendlyParser:
    commands = next(action.choices for action in parser._actions if action.dest == "command")
    return cast(FriendlyParser, cast(dict[str, Any], commands)[name])


@contextmanager
def _stall_watch(args: argparse.Namespace) -> Iterator[None]:
    """Watch for storage that does not answer while a command runs."""
    timeout_s, abort_s = args.stall_timeout, args.stall_abort
    if not (timeout_s or abort_s):
        yield
        return
    from mdio.core.stalls import StallWatch

    watch = StallWatch(timeout_s or abort_s, abort_s or None)
    try:
        yield
    finally:
        watch.stop()


BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


def _import_numpy(words: Sequence[str]) -> None:
    """Import NumPy so that OpenBLAS starts no threads, unless a user's function may need them.

    It would start one for each core, which polls for work during all of a short command; no kernel
    of mdio has work for them.
    """
    if (
        "numpy" in sys.modules
        or _has_user_code(words)
        or any(name in os.environ for name in BLAS_THREADS)
    ):
        return
    os.environ[BLAS_THREADS[0]] = "1"
    try:
        import_module("numpy")
    finally:
        del os.environ[BLAS_THREADS[0]]  # OpenBLAS has read it; child processes shall not


def _has_user_code(words: Sequence[str]) -> bool:
    """Return whether words name a module:function; colons of URLs, runs and levels do not."""
    return any(re.search(r"\w:[^\W\d]", word) and word[:5] != "mdio." for word in words)


def _note_on_interrupt(args: argparse.Namespace) -> str:
    if getattr(args, "resume", False):
        return "what an earlier run has kept stays as it was"
    return "nothing half-written is left"


def _notes(error: BaseException) -> str:
    """Return the notes of an exception, which list the work that is kept."""
    return "; ".join(getattr(error, "__notes__", ()))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (without the program's name); return the exit code."""
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete

        argcomplete.autocomplete(_parser(ALL_COMMANDS, show_all=True))
    if argv is not None:
        return _run(list(argv))
    warnings.formatwarning = _format_warning  # type: ignore[assignment]
    if not _has_user_code(sys.argv):  # it may leave files open, which Python flushes at exit
        atexit.register(gc.freeze)  # otherwise, no last garbage collection is needed
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
    if code is not None and not isinstance(code, int):  # as Python does at exit
        print(code, file=sys.stderr)
        code = 1
    raise SystemExit(end_mpi(code or 0))


def _format_warning(
    message: Warning | str,
    category: type[Warning],
    *location: Any,
    form: Any = warnings.formatwarning,
) -> str:
    """Return a warning to users as a line of mdio's, others with their place in the code."""
    return (
        f"mdio: {message}\n" if category is UserWarning else str(form(message, category, *location))
    )


def _run(words: list[str]) -> int:
    if not words:
        print(examples())
        return 0
    command = next((word for word in words if not word.startswith("-")), None)
    if command in COMMANDS:
        _import_numpy(words)
    compares_words = command not in (*RANK_0_COMMANDS, *ANY_RANK_COMMANDS)
    with rank_0_parser_messages(words, compares_words=compares_words):
        try:
            is_first, show_all = words[0] == command in COMMANDS, "--help-all" in words
            parser = _parser(command, is_single=is_first, show_all=show_all)
        except MissingExtensionError as error:
            print(f"mdio: {error}", file=sys.stderr)
            return 1
        if command is not None and command not in COMMANDS:
            hint = did_you_mean(command, COMMANDS)
            parser.error(f"no command {command!r}{hint}; the commands are {', '.join(COMMANDS)}")
        args, unknown = parser.parse_known_args(words)
        if unknown:
            command_parser = _command_parser(parser, args.command)
            for action in command_parser._actions:
                if isinstance(action, argparse._SubParsersAction):
                    command_parser = action.choices[getattr(args, action.dest)]
            if not _assign_files(command_parser, args, unknown):
                first = next((word for word in unknown if word[:1] == "-"), unknown[0])
                hint = hint_at_option(first, command_parser)
                command_parser.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        args.words = words
        if args.command in RANK_0_COMMANDS and n_launched_ranks() > 1 and launched_rank(words):
            return 0
        uses_mpi = getattr(args, "executor", None) == "mpi" or getattr(args, "mpi", False)
        try:
            if "scheduler" in args:
                executor_name(args)
        except PlanError as error:
            print(f"mdio {args.command}: {error}", file=sys.stderr)
            if launched_rank(words) or n_launched_ranks() > 1:
                raise SystemExit(2) from error
            return 2
        ranks_are_allowed = uses_mpi or args.command in (*RANK_0_COMMANDS, *ANY_RANK_COMMANDS)
        if not ranks_are_allowed and (n_ranks := n_launched_ranks()) > 1:
            parser.error(
                f"{n_ranks} MPI ranks were started, and each would do all of the work; "
                f"{'add --mpi, or ' if 'mpi' in args else ''}start mdio without mpiexec"
            )
    try:
        # With MPI, `all_ranks` handles signals: ranks interrupted before would wait for others.
        with nullcontext() if uses_mpi else signals_as_exceptions(), _stall_watch(args):
            run = import_module(f"mdio.cli.{args.command}").run
            if "scheduler" not in args:
                return int(run(args))
            with chosen_executor(args) as executor:
                return int(run(args, executor))
    except MdioError as error:
        if args.debug:
            raise
        text = " ".join(str(error).split())
        cause = error.__cause__
        _, is_memory, detail = text.partition(" failed: MemoryError")
        if is_memory and cause is None:  # it is that of another process, which lacks its cause
            cause = MemoryError(detail.removeprefix(": "))
        if isinstance(cause, MemoryError):
            text = f"{text.partition(': MemoryError')[0]}: {out_of_memory(cause)}"
        elif " failed: " in text and {"kernel", "program"} & vars(args).keys():
            has_traceback = error.__cause__ is not None or _notes(error)  # else it was killed
            text += "; --debug shows the line" if has_traceback else ""
        print(f"mdio {args.command}: {text}", file=sys.stderr)
        return 2 if isinstance(error, PlanError) else 1
    except KeyboardInterrupt as interrupt:
        note = _notes(interrupt) or _note_on_interrupt(args)
        print(f"mdio {args.command}: interrupted; {note}", file=sys.stderr)
        return 130
    except SystemExit as end:
        is_signal = isinstance(end.code, int) and end.code > 128
        if note := _notes(end) or (_note_on_interrupt(args) if is_signal else ""):
            print(f"mdio {args.command}: ended by a signal; {note}", file=sys.stderr)
        raise
    except BrokenPipeError:
        # The reader of our output has closed it (``mdio info x | head -1``).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (OSError, MemoryError, ImportError) as error:
        if args.debug or (isinstance(error, ImportError) and not _is_memory_error(error)):
            raise
        if isinstance(error, MemoryError | ImportError):
            message = f"mdio {args.command}: {out_of_memory(error)}"
        else:
            from mdio.core.stalls import lost_storage_text

            text = without_passwords(str(error)) or type(error).__name__
            message = f"mdio {args.command}{lost_storage_text(error)}: {text}"
        print(message, file=sys.stderr)
        return 1


def _is_memory_error(error: ImportError) -> bool:
    """Return whether a library could not be loaded because memory was short."""
    return any(text in str(error) for text in ("Cannot allocate memory", "failed to map segment"))


def out_of_memory(error: BaseException) -> str:
    """Return the message for a MemoryError, or for a library that did not fit into memory."""
    detail = f" ({error})" if str(error) else ""
    if isinstance(error, ImportError):
        detail = f" while loading {error.name or 'a library'}"
    return (
        f"out of memory{detail}; select fewer atoms, take fewer workers (-w), or use a machine "
        "with more memory"
    )


if __name__ == "__main__":
    sys.exit(main())
