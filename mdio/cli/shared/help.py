"""Help that fits a screen: what is used most comes first, ``--help-all`` has the rest."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import Any, NoReturn

from mdio.core.words import did_you_mean, without_passwords

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


MEANT = {
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
}
"""What other programs call an option, which spelling alone would not find."""


MEANT_VALUES = {"multiprocessing": "processes", "distributed": "dask", "none": "serial"}
SCRIPTS = ("layouts", "gather", "scheduler")
"""Benches that were commands once."""


def hint_for(word: str, parser: argparse.ArgumentParser) -> str:
    """Return which option of `parser` may be meant by one that it does not have."""
    word = word.partition("=")[0]
    known, meant = parser._option_string_actions, MEANT.get(word, word)
    if meant == "--out" != word and meant not in known:
        return " (give the output last, without an option)"
    if meant in known:
        return f" (did you mean {meant!r}?)"
    return "" if word in MEANT or len(word) == 2 else did_you_mean(word, known)


def examples() -> str:
    """Return the five commands that people use most, with an example each."""
    lines = ["mdio: molecular-dynamics trajectories in layouts that read fast, in parallel", ""]
    for what, command in EXAMPLES:
        lines += [f"  {what}", f"    {command}"]
    more = "mdio --help lists all commands, mdio COMMAND --help the options of one"
    return "\n".join([*lines, "", more])


class FriendlyParser(argparse.ArgumentParser):
    """Tells what is wrong in one line; its help begins with what people use."""

    def error(self, message: str) -> NoReturn:
        """End with exit code 2 and one line."""
        if message.startswith("the following arguments are required"):
            actions = self._get_positional_actions()
            message += f"; write {' '.join([self.prog, *map(_place, actions)])}"
            if actions and isinstance(actions[-1], argparse._SubParsersAction):
                message += f", one of {', '.join(actions[-1].choices)}"
        message = without_passwords(message)
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            choices = [str(one) for one in action.choices or ()]
            meant = MEANT_VALUES.get(value)
            hint = (
                f" (did you mean {meant!r}?)" if meant in choices else did_you_mean(value, choices)
            )
            if action.dest == "bench" and value in SCRIPTS:
                hint = f" (in the sources: python bench/{value}.py)"
            error.message += hint
            raise

    def show_first(self, common: Collection[str]) -> None:
        """Leave all options but `common` out of ``--help`` and add ``--help-all``."""
        if not common:
            return
        self.epilog = f"{self.prog} --help-all lists all options."
        hidden = [
            action
            for action in self._actions
            if action.option_strings and not set(action.option_strings) & {*common, "-h"}
        ]
        self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all options and exit")
        self._hidden = hidden

    _hidden: list[argparse.Action] = []  # noqa: RUF012 - never changed in place

    def format_help(self) -> str:
        """Return the help with the common options only."""
        if not self._hidden:
            return super().format_help()
        kept = {action: action.help for action in self._hidden}
        places = map(_place, self._get_positional_actions())
        self.usage = " ".join([self.prog, *places, "[options]"])
        for action in self._hidden:
            action.help = argparse.SUPPRESS
        try:
            return super().format_help()
        finally:
            self.usage = None
            for action, text in kept.items():
                action.help = text

    def format_all(self) -> str:
        """Return the help with all options."""
        return super().format_help()


def _place(action: argparse.Action) -> str:
    name = str(action.metavar)
    return f"{name} [{name} ...]" if action.nargs == "+" else name


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        if isinstance(parser, FriendlyParser):
            parser.epilog = None
            print(parser.format_all(), end="")
        parser.exit()
