"""The report as one HTML file that needs nothing beside it: figures inside, no script, nothing fetched."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping
from html import escape
from string import Template

from results.report.content import Report
from results.report.figure import Figure
from results.report.table import Table

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --quiet: #777; --tint: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .5rem; border-bottom: 1px solid var(--line); padding-bottom: .2rem; }
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
figcaption b { color: CanvasText; }
details { margin: .3rem 0; font-size: .88rem; }
@media print { nav, details { display: none; } figure { break-inside: avoid; } }
"""

_PAGE = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
</head>
<body>
<h1>$title</h1>
<p>$opening</p>
<nav><ul>
$contents
</ul></nav>
$sections
</body>
</html>
""")


def build_page(report: Report, drawn: Mapping[int, str]) -> str:
    """`drawn`: SVG text by figure number; a figure that is not in it is listed with its reason."""
    tables = [(table.title, _render_table(table)) for table in report.text.tables]
    titles = [title for title, _ in tables]
    first = next((index for index, title in enumerate(titles) if title.startswith(report.figures_before)), len(tables))
    figures = "\n".join(_render_figure(figure, drawn.get(figure.number)) for figure in report.figures)
    limits = _render_list(report.text.limits)
    parts = [*tables[:first], ("Figures", figures), *tables[first:], ("What this does not say", limits)]
    sections = [
        f'<section id="s{number}"><h2>{escape(title)}</h2>\n{body}\n</section>'
        for number, (title, body) in enumerate(parts, 1)
    ]
    contents = [f'<li><a href="#s{number}">{escape(title)}</a></li>' for number, (title, _) in enumerate(parts, 1)]
    return _PAGE.substitute(
        title=escape(report.title),
        style=_STYLE,
        opening=escape(report.text.opening),
        contents="\n".join(contents),
        sections="\n".join(sections),
    )


def _render_figure(figure: Figure, svg: str | None) -> str:
    name = f"<b>Figure {figure.label}. {escape(figure.title)}.</b>"
    if svg is None:
        return f'<p class="note">{name} Not drawn: {escape(figure.missing)}</p>'
    image = b64encode(svg.encode()).decode()  # as an image, so that the ids of several drawings cannot meet
    rows = (tuple(map(_format_value, row)) for row in figure.table.itertuples(index=False, name=None))
    numbers = Table("", tuple(map(str, figure.table.columns)), tuple(rows))
    shown = f'<img alt="{escape(figure.title)}" src="data:image/svg+xml;base64,{image}">'
    return (
        f'<figure id="figure-{figure.label}">{shown}\n'
        f"<figcaption>{name} {escape(figure.caption)}</figcaption>\n"
        f"<details><summary>Its numbers ({len(figure.table)} rows)</summary>{_render_table(numbers)}</details></figure>"
    )


def _format_value(value: object) -> str:
    """A number as the table beside a figure shows it; nothing where nothing was measured."""
    if value is None or value != value:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _render_table(table: Table) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    body = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>\n' if table.note else ""
    return f'{note}<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _render_list(lines: Iterable[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{escape(line)}</li>" for line in lines) + "\n</ul>"
