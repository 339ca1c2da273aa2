"""The instance table, and the facts of one instance."""

from __future__ import annotations

from console import format as say
from console.feed import Picture, now_of
from console.glyphs import Glyphs
from console.themes import SERIES
from console.widgets.histogram import Counts
from console.widgets.table import Cell, Column, Row, cell
from state.run import INSTANCE_ENDED, InstanceState
from state.view import InstanceView, RunView

STALE_S = 3.0
"""Numbers of a live instance older than this are marked with their age."""


def config_tone(view: RunView, config: str) -> str:
    """A config's colour: its place in the plan."""
    return f"series-{view.plan.configs.index(config) % SERIES}" if config in view.plan.configs else ""


def tone_of(view: RunView, instance: InstanceView) -> str:
    """An instance's colour: by config where configs are compared, by its place where all have the same config."""
    if len(view.plan.configs) > 1 and instance.config in view.plan.configs:
        return config_tone(view, instance.config)
    return f"series-{list(view.instances).index(instance.instance) % SERIES}"


def instance_columns(width: int) -> tuple[Column, ...]:
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
    return tuple(instance_row(picture, instance, glyphs, columns) for instance in ordered(picture.view))


def ordered(view: RunView) -> list[InstanceView]:
    live = list(view.live_instances)
    return live + [i for i in reversed(tuple(view.instances.values())) if i.state in INSTANCE_ENDED]


def instance_row(picture: Picture, instance: InstanceView, glyphs: Glyphs, columns: tuple[Column, ...]) -> Row:
    numbers = instance_numbers(instance)
    current = is_current(picture, instance)
    tone = "" if current else "dim"
    fixed: dict[str, Cell] = {
        "name": cell(instance.instance, tone_of(picture.view, instance)),
        "state": instance_state(picture, instance, glyphs),
    }
    cells = tuple(fixed.get(column.key) or cell(numbers[column.key], tone) for column in columns)
    return Row(instance.instance, cells)


def instance_state(picture: Picture, instance: InstanceView, glyphs: Glyphs) -> Cell:
    """The state; of a ready instance whose numbers are not of now, their age."""
    seconds = sample_age_s(picture, instance)
    if picture.live and instance.state is InstanceState.READY and seconds is not None and seconds > STALE_S:
        return cell(f"{glyphs.sign('warning')} {say.age(seconds)} old", "warn")
    return cell(*glyphs.state(instance.state))


def sample_age_s(picture: Picture, instance: InstanceView) -> float | None:
    """Seconds since the instance's last numbers; None before the first."""
    return None if instance.latest_unix_s is None else max(0.0, now_of(picture) - instance.latest_unix_s)


def is_current(picture: Picture, instance: InstanceView) -> bool:
    """Its numbers are of this moment, not of a past one."""
    seconds = sample_age_s(picture, instance)
    return picture.live and instance.state not in INSTANCE_ENDED and seconds is not None and seconds <= STALE_S


def instance_numbers(instance: InstanceView) -> dict[str, str]:
    """An instance's last numbers as text, by column."""
    last = instance.latest
    if last is None:
        return dict.fromkeys(_NUMBERS, say.NOT_MEASURED)
    return {
        "ttft_p50": say.ms(last.ttft_p50_s),
        "ttft_p90": say.ms(last.ttft_p90_s),
        "tpot_p50": say.ms(last.tpot_p50_s),
        "tpot_p90": say.ms(last.tpot_p90_s),
        "step_p50": say.us_as_ms(last.step_p50_us),
        "step_p90": say.us_as_ms(last.step_p90_us),
        "ttft": _pair(say.short_ms(last.ttft_p50_s), say.short_ms(last.ttft_p90_s)),
        "tpot": _pair(say.ms(last.tpot_p50_s), say.ms(last.tpot_p90_s)),
        "step": _pair(say.us_as_ms(last.step_p50_us), say.us_as_ms(last.step_p90_us)),
        "running": say.whole(last.running),
        "waiting": say.whole(last.waiting),
        "pending": say.tokens(last.pending_prefill_tokens),
        "kv": say.percent(last.kv_usage),
    }


_NUMBERS = (
    "ttft_p50", "ttft_p90", "tpot_p50", "tpot_p90", "step_p50", "step_p90", "ttft", "tpot", "step", "running",
    "waiting",
    "pending", "kv",
)  # fmt: skip


def _pair(first: str, second: str) -> str:
    return say.NOT_MEASURED if first == second == say.NOT_MEASURED else f"{first}/{second}"


def instance_detail(picture: Picture, instance: InstanceView) -> list[tuple[str, str]]:
    """What an instance is and what its client counts, as label and text."""
    last = instance.latest
    lines = [
        ("state", str(instance.state) + (f", {instance.reason}" if instance.reason else "")),
        ("config", instance.config),
        ("url", instance.url or say.NOT_MEASURED),
        ("process", f"pid {instance.pid}, group {instance.pgid}" if instance.pid else say.NOT_MEASURED),
        ("started", f"{say.clock(instance.started_unix_s)} by {instance.started_by or say.NOT_MEASURED}"),
        ("ready after", say.duration(_since(instance.started_unix_s, instance.ready_unix_s))),
    ]
    if last is not None:
        ended = f"{last.completed} done, {last.failed} failed, {last.dropped} dropped"
        lines += [
            ("cell", last.cell),
            ("of the cell", f"{last.sent} sent, {ended}, {last.inflight} open"),
            ("late p99", f"{say.ms(last.lateness_p99_s)} ms"),
        ]
    seconds = sample_age_s(picture, instance)
    if seconds is not None and seconds > STALE_S:
        lines.append(("numbers from", say.moment(instance.latest_unix_s)))
    return lines


def _since(start: float, end: float | None) -> float | None:
    return None if end is None else end - start


def counts(view: RunView, instances: list[InstanceView]) -> tuple[Counts, ...]:
    """The step histograms of these instances."""
    return tuple(
        Counts(i.instance, tone_of(view, i), i.step_counts_total) for i in instances if sum(i.step_counts_total)
    )
