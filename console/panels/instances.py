"""The Instances panel: every instance with its newest numbers."""

from __future__ import annotations

from console.feed import Picture
from console.glossary import Entry
from console.glyphs import Glyphs
from console.panels.panel import Opening, PanelKind, Place, TablePanel
from console.rows.instances import format_instance_numbers, is_current, order_instances, show_instance_state, tone_of
from console.widgets.table import Cell, Column, Row, Table, cell
from results.report.terms import term
from state.model import InstanceView, RunView

LINES = (6, 11)
"""The least and the most lines on the dashboard."""


def choose_instance_columns(width: int) -> tuple[Column, ...]:
    """Percentiles share a column where the table is narrow."""
    if width >= 112:
        return (
            Column("name", "instance", 17, left=True, flex=True),
            Column("state", "state", 15, left=True),
            *(Column(key, title, 8, "ms") for key, title in _PERCENTILES[:4]),
            Column("running", "run", 4),
            Column("waiting", "wait", 4),
            Column("pending", "pend", 6, "tok"),
            Column("kv", "KV", 4, "%"),
            *(Column(key, title, 8, "ms") for key, title in _PERCENTILES[4:]),
        )
    return (
        Column("name", "instance", 16, left=True, flex=True),
        Column("state", "state", 10, left=True),
        Column("ttft", "TTFT ms", 9, "p50/p90"),
        Column("tpot", "TPOT ms", 9, "p50/p90"),
        Column("running", "run", 3),
        Column("waiting", "wait", 4),
        Column("pending", "pend", 5, "tok"),
        Column("kv", "KV", 2, "%"),
        Column("step", "step ms", 9, "p50/p90"),
    )


_PERCENTILES = (
    ("ttft_p50", "TTFT p50"),
    ("ttft_p90", "TTFT p90"),
    ("tpot_p50", "TPOT p50"),
    ("tpot_p90", "TPOT p90"),
    ("step_p50", "step p50"),
    ("step_p90", "step p90"),
)


def instance_rows(picture: Picture, glyphs: Glyphs, columns: tuple[Column, ...]) -> tuple[Row, ...]:
    """Live instances first, then those that are gone, newest first."""
    return tuple(make_instance_row(picture, instance, glyphs, columns) for instance in order_instances(picture.view))


def make_instance_row(picture: Picture, instance: InstanceView, glyphs: Glyphs, columns: tuple[Column, ...]) -> Row:
    numbers = format_instance_numbers(instance)
    current = is_current(picture, instance)
    tone = "" if current else "dim"
    fixed: dict[str, Cell] = {
        "name": cell(instance.instance, tone_of(picture.view, instance)),
        "state": show_instance_state(picture, instance, glyphs),
    }
    cells = tuple(fixed.get(column.key) or cell(numbers[column.key], tone) for column in columns)
    return Row(instance.instance, cells)


class InstancesPanel(TablePanel):
    """Enter opens an instance on its own screen."""

    EMPTY = "no instance has been launched yet"

    def show(self, picture: Picture) -> None:
        columns = choose_instance_columns(self.table.room)
        self.table.show(columns, instance_rows(picture, self.look.glyphs, columns))

    def open_row(self, table: Table, key: str, picture: Picture) -> Opening | None:
        return Opening(instance=key)

    def count_wanted_lines(self, view: RunView) -> int:
        return min(LINES[1], max(LINES[0], len(view.instances) + 4))


PANEL = PanelKind(
    "instances",
    "2",
    "Instances",
    "every instance and its numbers of the last second",
    InstancesPanel,
    Place.RIGHT,
    entries=(
        Entry(
            "TTFT p50, p90",
            term("TTFT"),
            "load client's own stamps, requests of the last second",
            "p90 far above p50: requests queue before their prefill",
        ),
        Entry("TPOT p50, p90", term("TPOT"), "load client's own stamps, requests that ended in the last second"),
        Entry("run", term("running"), "engine gauge vllm:num_requests_running"),
        Entry(
            "wait",
            term("waiting"),
            "engine gauge vllm:num_requests_waiting",
            "growing second by second: the load is above what this config can serve",
        ),
        Entry("pend", term("pending prefill tokens"), "load client's own count"),
        Entry("KV", term("KV usage"), "engine gauge vllm:kv_cache_usage_perc", "near 100: preemptions follow"),
        Entry(
            "step p50, p90",
            term("step"),
            "step probe inside the engine, steps of the last second",
            "shown as – where the probe does not fit this engine; the feed says why",
        ),
        Entry(
            "late p99",
            term("lateness"),
            "load client, on the instance's own screen",
            "large: the client, not the engine, was slow",
        ),
        Entry(
            "dropped",
            term("dropped request"),
            "load client, on the instance's own screen",
            "more than 0: offered load was not delivered",
        ),
    ),
)
