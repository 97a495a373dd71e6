"""Pages and tables of HTML: all reports have the template ``page.html``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template


def page(title: str, sections: Sequence[str]) -> str:
    """Return a page that needs no other files, for phones, screens and paper."""
    template = Template(resources.files("mdio.core").joinpath("page.html").read_text("utf-8"))
    return template.substitute(title=escape(title), sections="".join(sections))


def section(title: str, *parts: str) -> str:
    """Return a part of the page under its title; `parts` are HTML."""
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def paragraph(text: str) -> str:
    """Return plain text as a paragraph."""
    return f"<p>{escape(text)}</p>"


def picture(svg: str, caption: str = "") -> str:
    """Return an SVG element with its caption."""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{svg}{below}</figure>"


def details(summary: str, *parts: str) -> str:
    """Return a section that is folded under its summary; `parts` are HTML."""
    return f"<details><summary>{escape(summary)}</summary>{''.join(parts)}</details>"


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return escape(str(value))


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table; the first column names the rows."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in headings)
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows
    )
    inside = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table>{inside}</table></div>'


def commands(lines: Iterable[str]) -> str:
    """Return command lines to copy, which are wrapped on the page but not in the copy."""
    text = "\n\n".join(map(escape, lines))
    return f'<pre style="white-space: pre-wrap">{text}</pre>'


def html_table(caption: str, rows: Iterable[Sequence[object]], head: Sequence[str] = ()) -> str:
    """Return a table as notebooks show it; the first cell of a row is its name."""
    lines = ["".join(f"<th>{escape(name)}</th>" for name in head)] if head else []
    for first, *rest in rows:
        cells = "".join(f"<td>{escape(str(cell))}</td>" for cell in rest)
        lines.append(f"<th>{escape(str(first))}</th>{cells}")
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{escape(caption)}</caption>{body}</table>"
