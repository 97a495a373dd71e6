"""The errors of mdio.

Each message is one line that names the file, what was found, what was expected and what to do.
It is an error's only argument, so that errors can be pickled.
"""

from mdio.core.words import without_passwords

FOREIGN_ERRORS = (
    *(OSError, LookupError, RuntimeError, ValueError, TypeError),
    *(AttributeError, ArithmeticError, MemoryError),
)
"""Exceptions of h5py, zarr and codecs for damaged or unexpected data."""


class MdioError(Exception):
    """Base of every error that mdio raises on purpose.

    Its subclasses, in `mdio.core.errors`, are subclasses of Python's errors, too:

    - `PlanError` (ValueError): options that do not fit together or do not fit the data
    - `SourceError` (OSError): an input that is missing, truncated, damaged, or does not fit
    - `CorruptLayoutError` (OSError): an output of mdio that is unfinished or damaged
    - `OutputError` (OSError): an output that cannot be written: it exists, the disk is full
    - `UnknownLayoutError` (ValueError): no layout reads or writes such a file
    - `FrameRangeError` (IndexError): frames or atoms outside the trajectory
    - `FrameReadError` (RuntimeError): a frame cannot be read through MDAnalysis
    - `BlockError` (RuntimeError): a block of an analysis failed

    Examples
    --------
    >>> import mdio
    >>> try:
    ...     mdio.convert("missing.xtc", "adk.zarr")
    ... except mdio.MdioError as error:
    ...     print(error)
    missing.xtc: no such file or folder
    """

    def __str__(self) -> str:
        """Return the message, without passwords of mistyped URLs."""
        return without_passwords(super().__str__())


class UnknownLayoutError(MdioError, ValueError):
    """No layout reads this path, or no layout of this name exists."""


class PlanError(MdioError, ValueError):
    """Options that contradict each other or do not fit the trajectory."""


class OptionError(PlanError, TypeError):
    """An option that a layout does not have."""


class SourceError(MdioError, OSError):
    """An input trajectory that is missing, truncated, corrupt or does not match its topology."""


class AtomCountError(SourceError):
    """The format of an input does not say how many atoms it has; a topology does."""


class CorruptLayoutError(MdioError, OSError):
    """An output of mdio that is unfinished, damaged, or of a newer format version."""


class OutputError(MdioError, OSError):
    """The output cannot be written: it exists, the disk is full, the folder is read-only."""


class FrameRangeError(MdioError, IndexError):
    """Frames or atoms outside the trajectory."""


class FrameReadError(MdioError, RuntimeError):
    """A frame cannot be read through MDAnalysis.

    Not an OSError: MDAnalysis takes an OSError during iteration for the end of the trajectory, and
    a damaged chunk would silently shorten it.
    """


class BlockError(MdioError, RuntimeError):
    """One block of a parallel run failed; the message names the block, its frames and the cause."""


class WorkerDiedError(BlockError):
    """A worker process has ended before its block was done, by a signal or an exit."""


class MissingExtraError(MdioError, ImportError):
    """An optional dependency is not installed; the message has the pip command."""


class MissingExtensionError(MdioError, ImportError):
    """A compiled part of mdio cannot be imported: it was not built, or for another Python."""


def unreadable_error(path: object, error: OSError) -> SourceError:
    """Return the error for a file that the system cannot read."""
    return SourceError(f"{path}: cannot be read ({error.strerror or error})")


def one_line(error: BaseException) -> str:
    """Return the message of an error in one line; its type if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def error_text(error: BaseException | None) -> str:
    """Return the type and message of an error, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
