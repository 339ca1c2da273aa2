"""What panels and screens show of an instance: its color, its state, its numbers, its facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from console import format as say
from console.feed import Picture, find_now
from console.glyphs import Glyphs
from console.themes import SERIES
from console.widgets.table import Cell, cell
from results.records.events import InstanceSampled, InstanceState
from results.records.named_number import NOT_MEASURED
from state.model import InstanceView, RunView
from state.run import INSTANCE_ENDED

STALE_S = 3.0
"""Numbers of a live instance older than this are marked with their age."""


def choose_config_tone(view: RunView, config: str) -> str:
    """A config's color, by its index in the plan."""
    return f"series-{view.plan.configs.index(config) % SERIES}" if config in view.plan.configs else ""


def tone_of(view: RunView, instance: InstanceView) -> str:
    """An instance's color: by config where configs are compared, by its index where all have the same config."""
    if len(view.plan.configs) > 1 and instance.config in view.plan.configs:
        return choose_config_tone(view, instance.config)
    return f"series-{list(view.instances).index(instance.instance) % SERIES}"


def choose_routed_tone(view: RunView, engine: str, index: int) -> str:
    """An instance's color by the name that the router's samples give its engine, else by its index there."""
    known = view.instances.get(engine)
    return f"series-{index % SERIES}" if known is None else tone_of(view, known)


def order_instances(view: RunView) -> list[InstanceView]:
    live = list(view.live_instances)
    return live + [i for i in reversed(tuple(view.instances.values())) if i.state in INSTANCE_ENDED]


def show_instance_state(picture: Picture, instance: InstanceView, glyphs: Glyphs) -> Cell:
    """The state; of a ready instance whose numbers are not of now, their age."""
    seconds = sample_age_s(picture, instance)
    if picture.live and instance.state is InstanceState.READY and seconds is not None and seconds > STALE_S:
        return cell(f"{glyphs.sign('warning')} {say.age(seconds)} old", "warn")
    return cell(*glyphs.state(instance.state))


def sample_age_s(picture: Picture, instance: InstanceView) -> float | None:
    """Seconds since the instance's last numbers; None before the first."""
    return None if instance.latest_unix_s is None else max(0.0, find_now(picture) - instance.latest_unix_s)


def is_current(picture: Picture, instance: InstanceView) -> bool:
    """Its numbers are of this moment, not of a past one."""
    seconds = sample_age_s(picture, instance)
    return picture.live and instance.state not in INSTANCE_ENDED and seconds is not None and seconds <= STALE_S


def format_instance_numbers(instance: InstanceView) -> dict[str, str]:
    """An instance's last numbers as text, by column."""
    last = instance.latest
    return {name: NOT_MEASURED if last is None else show(last) for name, show in _NUMBERS.items()}


_NUMBERS: Mapping[str, Callable[[InstanceSampled], str]] = {
    "ttft_p50": lambda last: say.ms(last.ttft_p50_s),
    "ttft_p90": lambda last: say.ms(last.ttft_p90_s),
    "tpot_p50": lambda last: say.ms(last.tpot_p50_s),
    "tpot_p90": lambda last: say.ms(last.tpot_p90_s),
    "step_p50": lambda last: say.us_as_ms(last.step_p50_us),
    "step_p90": lambda last: say.us_as_ms(last.step_p90_us),
    "ttft": lambda last: _format_pair(say.short_ms(last.ttft_p50_s), say.short_ms(last.ttft_p90_s)),
    "tpot": lambda last: _format_pair(say.ms(last.tpot_p50_s), say.ms(last.tpot_p90_s)),
    "step": lambda last: _format_pair(say.us_as_ms(last.step_p50_us), say.us_as_ms(last.step_p90_us)),
    "running": lambda last: say.whole(last.running),
    "waiting": lambda last: say.whole(last.waiting),
    "pending": lambda last: say.tokens(last.pending_prefill_tokens),
    "kv": lambda last: say.percent(last.kv_usage),
}


def _format_pair(first: str, second: str) -> str:
    return NOT_MEASURED if first == second == NOT_MEASURED else f"{first}/{second}"


def list_instance_facts(picture: Picture, instance: InstanceView) -> list[tuple[str, str]]:
    """What an instance is and what its client counts, as label and text."""
    last = instance.latest
    lines = [
        ("state", str(instance.state) + (f", {instance.reason}" if instance.reason else "")),
        ("config", instance.config),
        ("url", instance.url or NOT_MEASURED),
        ("process", f"pid {instance.pid}, group {instance.pgid}" if instance.pid else NOT_MEASURED),
        ("started", f"{say.clock(instance.started_unix_s)} by {instance.started_by or NOT_MEASURED}"),
        ("ready after", say.duration(_compute_seconds_since(instance.started_unix_s, instance.ready_unix_s))),
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


def _compute_seconds_since(start: float, end: float | None) -> float | None:
    return None if end is None else end - start
