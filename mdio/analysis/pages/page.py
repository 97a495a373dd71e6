"""One self-contained HTML page: numbers, tables and pictures, on a phone, a screen and paper."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from os import PathLike

from mdio.analysis.results import check_output
from mdio.core.files.publish import publish

CSS = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --line: #ddd; --pale: #444; }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e4e4e4; --paper: #16181b; --line: #3a3d42; --pale: #b0b0b0; }
}
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  margin: 0 auto; padding: 1rem; max-width: 54rem; }
h1 { font-size: 1.4rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }
figure { margin: 1rem 0; break-inside: avoid; }
figure svg { display: block; width: 100%; height: auto; max-width: 46rem; margin: 0 auto;
  background: #fff; border-radius: .3rem; }
@media screen and (prefers-color-scheme: dark) {
  figure svg { filter: invert(.91) hue-rotate(180deg); }
}
figcaption { font-size: .875rem; color: var(--pale); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td:first-child:nth-last-child(2), td:nth-child(2):last-child { white-space: normal; }
thead th { border-bottom: 2px solid #888; }
@media print {
  body { font-size: 10pt; max-width: none; padding: 0; }
  .wide { overflow: visible; }
  table { font-size: 7pt; }
  th, td { padding: 1pt 3pt; }
  thead { display: table-header-group; }
  tr { break-inside: avoid; }
}
"""


def section(title: str, *parts: str) -> str:
    """Return a part of the page under its title; `parts` are HTML."""
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def paragraph(text: str) -> str:
    """Return plain text as a paragraph."""
    return f"<p>{escape(text)}</p>"


def picture(svg: str, caption: str = "") -> str:
    """Return an SVG element with what it shows."""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{svg}{below}</figure>"


def details(summary: str, *parts: str) -> str:
    """Return what is shown when one asks for it; `parts` are HTML."""
    return f"<details><summary>{escape(summary)}</summary>{''.join(parts)}</details>"


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return escape(str(value))


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table; the first column names the rows."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows
    )
    inside = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table>{inside}</table></div>'


def save_page(path: str | PathLike[str], title: str, sections: Sequence[str]) -> None:
    """Write the page; it appears when it is whole.

    Raises OutputError: it cannot be written.
    """
    text = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head><body>"
        f"<h1>{escape(title)}</h1>{''.join(sections)}</body></html>\n"
    )
    with publish(check_output(path), force=True) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")  # names of files
