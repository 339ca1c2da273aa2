"""Saves the numbers behind a section of the results. Runs in a thread."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING

from console.findings import PAGE, Report

if TYPE_CHECKING:
    from results.connector_tax.analyse import Analysis


def export_folders(folder: Path, read_only: bool) -> tuple[Path, ...]:
    """Where files may go, best first: the run's folder, else the folder the console was started in."""
    return (Path.cwd(),) if read_only else (folder / "exports", Path.cwd())


def save_export(data: bytes, name: str, folders: tuple[Path, ...]) -> Path:
    """Write the file into the first folder that takes it; raises OSError where none does."""
    for number, folder in enumerate(folders, 1):
        path = folder / name
        try:
            folder.mkdir(exist_ok=True)
            path.write_bytes(data)
        except OSError:
            if number == len(folders):
                raise
        else:
            return path
    raise OSError("no folder to write to")


def export_content(analysis: Analysis | Report, section: str) -> tuple[str, bytes]:
    """The file's ending and what it holds: one of the files that the analysis writes, a table, or the report."""
    if isinstance(analysis, Report):
        return _of_report(analysis, section)
    import msgspec

    from results.connector_tax import write as files
    from results.connector_tax.report import build_report
    from results.report.document import render_markdown, report_title

    def pretty(value: object) -> bytes:
        return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"

    if section == PAGE:
        return "json", pretty(files.build_taxes(analysis))
    if section == "taxes":
        return "csv", files.flat_taxes(analysis.taxes).to_csv(index=False).encode()
    if section == "verdicts":
        return "json", pretty(files.build_verdicts(analysis))
    if section == "rates":
        return "json", analysis.rates.to_json()
    if section == "gaps":
        return "json", pretty(analysis.gaps)
    if section == "report":
        return "md", render_markdown(report_title(analysis.facts), build_report(analysis)).encode()
    return "csv", files.flat_cells(analysis).to_csv(index=False).encode()


def _of_report(report: Report, section: str) -> tuple[str, bytes]:
    table = report.sections.get(section)
    if table is None:
        from results.report.content import ReportText
        from results.report.document import render_markdown

        return "md", render_markdown("Report", ReportText(report.head, report.tables, report.unsaid)).encode()
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((table.columns, *table.rows))
    return "csv", text.getvalue().encode()
