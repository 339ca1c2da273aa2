"""The report as one self-contained HTML file: figures embedded, no script, no external resource."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from string import Template

from results.report.content import Report
from results.report.document import LIMITS_TITLE
from results.report.figure import Figure
from results.report.page import REMEDIES_TITLE, OpenQuestion, Page, PageAnswer, group_by_figure, group_remedies
from results.report.print_sheet import PRINT_CSS
from results.report.table import Table

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1a1a1a; --line: #8884; --quiet: #666; --tint: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 4rem;
  background: var(--paper); color: var(--ink); }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem; }
h3 { font-size: 1rem; margin: 2rem 0 .5rem; }
.question { font-size: 1.1rem; font-weight: 600; margin: .3rem 0 .6rem; }
.trouble { border-left: 3px solid #d55e00; padding-left: .6rem; }
.beside { display: grid; grid-template-columns: minmax(0, 5fr) minmax(0, 6fr); gap: 0 1.5rem; align-items: start; }
main ul { margin: .3rem 0; padding-left: 1.1rem; }
.beside figure { margin: .3rem 0 1rem; }
code { font-size: .9em; }
.outcome { font-variant: small-caps; }
nav ul { columns: 18rem; list-style: none; padding: 0; font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line); }
th { white-space: nowrap; font-weight: 600; }
td:first-child { white-space: nowrap; }
tbody tr:hover { background: var(--tint); }
.note, figcaption { color: var(--quiet); font-size: .88rem; max-width: 50rem; }
figure { margin: 1.5rem 0 2.5rem; }
figure img { max-width: 100%; background: #fff; border: 1px solid var(--line); border-radius: 4px; }
figcaption b { color: var(--ink); }
details { margin: .3rem 0; font-size: .88rem; }
@media (max-width: 50rem) { .beside { display: block; } }
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181b; --ink: #e6e6e6; --quiet: #a0a4a8; }
  figure img { filter: invert(0.9) hue-rotate(180deg); }
}
"""

_CODE = re.compile("`([^`]+)`")

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
</head>
<body>
<main>
<h1>$title</h1>
$page
</main>
<div id="appendix">
<h2>Appendix</h2>
<p>$opening</p>
<nav><ul>
$contents
</ul></nav>
$sections
</div>
</body>
</html>
""")


def build_page(report: Report, drawn: Mapping[int, str], beside: Mapping[int, str]) -> str:
    """`drawn`: SVG text by figure number; a figure without one is listed with its reason.

    `beside`: SVG text of the figures beside the page's sentences, drawn for that size.
    """
    tables = [(table.title, _render_table(table)) for table in report.text.tables]
    titles = [title for title, _ in tables]
    first = next((index for index, title in enumerate(titles) if title.startswith(report.figures_before)), len(tables))
    figures = "\n".join(_render_figure(figure, drawn.get(figure.number)) for figure in report.figures)
    limits = _render_list(report.text.limits)
    parts = [*tables[:first], ("Figures", figures), *tables[first:], (LIMITS_TITLE, limits)]
    sections = [
        f'<section id="s{number}"><h3>{escape(title)}</h3>\n{body}\n</section>'
        for number, (title, body) in enumerate(parts, 1)
    ]
    contents = [f'<li><a href="#s{number}">{escape(title)}</a></li>' for number, (title, _) in enumerate(parts, 1)]
    return _PAGE.substitute(
        title=escape(report.title),
        style=f"{_STYLE.rstrip()}{PRINT_CSS}",
        page=_render_answers(report.page, report.figures, beside),
        opening=_render_prose(report.text.opening),
        contents="\n".join(contents),
        sections="\n".join(sections),
    )


def _render_answers(page: Page, figures: Sequence[Figure], beside: Mapping[int, str]) -> str:
    """The page itself: each figure beside the first sentences that it supports."""
    parts = [f'<p class="question">{escape(page.question)}</p>', f"<p>{_render_prose(' '.join(page.setting))}</p>"]
    parts += [f"<p>{_render_prose(page.noise)}</p>"]
    if page.trouble:
        parts.append(f'<p class="trouble">{_render_prose(page.trouble)}.</p>')
    images = {figure.number: figure for figure in figures if figure.number in beside}
    for title, sentences in page.sections:
        parts.append(f"<h2>{title}</h2>")
        for number, group in group_by_figure(sentences):
            listed = "<ul>\n" + "\n".join(map(_render_sentence, group)) + "\n</ul>"
            figure = images.pop(number, None)
            if figure is None:
                parts.append(listed)
            else:
                parts.append(f'<div class="beside">{listed}\n{_render_image(figure, beside[number])}</div>')
    remedies = [f"{names}: {decides}." for names, decides in group_remedies(page.undecided)]
    if remedies:
        parts.append(f"<p>{REMEDIES_TITLE}</p>\n{_render_list(remedies)}")
    return "\n".join(parts)


def _render_sentence(one: PageAnswer | OpenQuestion) -> str:
    shown = f' (<span class="outcome">{escape(one.outcome)}</span>)' if one.outcome else ""
    return f"<li><b>{escape(one.name)}</b>{shown}: {_render_prose(one.text)}</li>"


def _render_image(figure: Figure, svg: str) -> str:
    name = f"Figure {figure.label}. {escape(figure.title)}."
    link = f'<a href="#figure-{figure.label}" title="larger, with its numbers">{_embed_svg(figure, svg)}</a>'
    return f"<figure>{link}\n<figcaption>{name}</figcaption></figure>"


def _embed_svg(figure: Figure, svg: str) -> str:
    """As an image, so that the ids of several drawings cannot collide."""
    image = b64encode(svg.encode()).decode()
    return f'<img alt="{escape(figure.title)}" src="data:image/svg+xml;base64,{image}">'


def _render_figure(figure: Figure, svg: str | None) -> str:
    name = f"<b>Figure {figure.label}. {escape(figure.title)}.</b>"
    if svg is None:
        return f'<p class="note">{name} Not drawn: {escape(figure.missing)}</p>'
    rows = (tuple(map(_format_value, row)) for row in figure.table.itertuples(index=False, name=None))
    numbers = Table("", tuple(map(str, figure.table.columns)), tuple(rows))
    return (
        f'<figure id="figure-{figure.label}">{_embed_svg(figure, svg)}\n'
        f"<figcaption>{name} {_render_prose(figure.caption)}</figcaption>\n"
        f"<details><summary>Its numbers ({len(figure.table)} rows)</summary>{_render_table(numbers)}</details></figure>"
    )


def _format_value(value: object) -> str:
    """A number as the table below a figure shows it; empty where nothing was measured."""
    if value is None or value != value:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _render_table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    body = "\n".join(f"<tr>{''.join(f'<td>{_render_prose(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    note = f'<p class="note">{_render_prose(table.note)}</p>\n' if table.note else ""
    return f'{note}<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _render_prose(text: str) -> str:
    """Escaped, with text between backticks as code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))


def _render_list(lines: Iterable[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{_render_prose(line)}</li>" for line in lines) + "\n</ul>"
