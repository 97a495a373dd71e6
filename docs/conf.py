"""The documentation site: ``make docs``."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from generated import run_examples, write_api, write_commands, write_pictures  # noqa: E402

from mdio._version import __version__  # noqa: E402

project = "mdio"
author = "the mdio developers"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "example-plugin"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_use_rtype = False
suppress_warnings = ["myst.xref_missing"]  # links beside docs/: a test follows all of them
html_theme = "furo"
html_title = f"mdio {release}"
html_static_path = ["_static"]
html_show_sphinx = False

MADE = HERE / "_generated"
MADE.mkdir(exist_ok=True)
write_commands(MADE / "commands.md")
write_api(MADE / "api.rst")
write_pictures(HERE / "_static")
run_examples(HERE / "_static")


def plain_docstring(_app, _what, _name, _object, _options, lines):
    """Turn our single backquotes, which name code, into literals."""
    lines[:] = [re.sub(r"(?<![`:\w])`([^`<>]+)`(?![`\w])", r"``\1``", line) for line in lines]


def own_pages(_app, _page, text):
    """Lead links to files beside docs/ to the pages of the site that have them."""
    for file, page in (
        ("../CONTRIBUTING.md", "contributing.md"),
        ("../bench/README.md", "bench.md"),
    ):
        text[0] = text[0].replace(f"]({file}", f"]({page}")


def setup(app):
    """Register what the docstrings need."""
    app.connect("autodoc-process-docstring", plain_docstring, priority=400)
    app.connect("source-read", own_pages)
