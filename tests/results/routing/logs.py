"""Decision logs written down by hand, so that every number can be counted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from results.records.decisions import (
    ClusterView,
    Decision,
    DecisionRecord,
    Gate,
    InstanceLoad,
    KvTransfer,
    RoutedOutcome,
    RoutedRequest,
)
from results.routing.logs import LogFacts, collect_log_facts
from results.routing.measurements import Measurements
from tests.results.routing.synthetic import T0_NS, Truth, World, loaded, measurements_of

HOT = 1000
COOLDOWN_S = 10.0


class Log:
    """A decision log in the making."""

    def __init__(self) -> None:
        self.records: list[DecisionRecord] = []
        self.pending = {"a": 0, "b": 0, "c": 0}

    def pick(
        self,
        t_s: float,
        session: str,
        to: str,
        *,
        source: str = "",
        status: str = "",
        request: str = "",
        cached: Mapping[str, int] | None = None,
        counted: int | None = None,
        gates: tuple[Gate, ...] = (),
        first_byte_s: float | None = 0.5,
        prompt_tokens: int = 2000,
        owner: str = "",
        prefill: str = "",
        transfer: KvTransfer | None = None,
    ) -> None:
        """One pick, with what is pending now; `status`: what came of the migration."""
        place = len(self.records)
        asked = RoutedRequest(request or f"r{place}", session, 0, prompt_tokens, 100, 16, cached or {}, owner)
        view = ClusterView(tuple(InstanceLoad(name, pending_prefill_tokens=n) for name, n in self.pending.items()), 0)
        made = Decision("ear", to, "x", gates=gates, migrate_from=source, prefill=prefill)
        migration = status or ("recomputed" if source else "")
        outcome = RoutedOutcome(
            "ok", 200, first_byte_s, 1.0, prompt_tokens, counted, 10, migration=migration, transfer=transfer
        )
        self.records.append(DecisionRecord(place, T0_NS + round(t_s * 1e9), 0.0, asked, view, made, outcome))


def spread(shares: tuple[int, int, int], kept: float) -> Log:
    """This many sessions on each instance; each comes again and finds `kept` of what its instance held."""
    log = Log()
    names = [name for name, count in zip("abc", shares, strict=True) for _ in range(count)]
    for place, name in enumerate(names):
        log.pick(place, f"s{place:03d}", name, counted=0)
        again_s = len(names) + place
        log.pick(again_s, f"s{place:03d}", name, owner=name, cached={name: 1000}, counted=int(1000 * kept))
    return log


def moved(
    source: str,
    target: str,
    *,
    begin_s: float = 0.0,
    took_s: float = 0.2,
    prefix: int = 1600,
    external: int | None = 1600,
    source_cached: int = 1600,
    purpose: str = "migration",
    status: str = "transferred",
    reason: str = "",
) -> KvTransfer:
    """A transfer whose prefill request is a quarter of its time; 2 bytes a token."""
    begin = T0_NS + round(begin_s * 1e9)
    step = round(took_s * 1e9 / 4)
    return KvTransfer(
        transfer="t",
        purpose="handover" if purpose == "handover" else "migration",
        transport="mooncake",
        source=source,
        target=target,
        status="failed" if status == "failed" else "refused" if status == "refused" else "transferred",
        reason=reason,
        attempts=1,
        prefix_tokens=prefix,
        source_cached_tokens=source_cached,
        external_tokens=external,
        local_tokens=None if external is None else prefix - external,
        computed_tokens=None if external is None else 0,
        bytes=None if external is None else 2 * external,
        bytes_from="tokens",
        t_begin_ns=begin,
        t_source_sent_ns=begin,
        t_source_done_ns=begin + step,
        t_target_sent_ns=begin + step,
        t_done_ns=begin + 4 * step,
    )


def facts_of_logs(
    world: World, policy: str, logs: Mapping[str, Sequence[Log]], fields: Callable[[str], Mapping[str, Any]]
) -> tuple[dict[str, dict[int, LogFacts]], Measurements]:
    """A run whose labels have these logs, one per trial; `fields` of a label's cell records."""
    facts: dict[str, dict[int, LogFacts]] = {label: {} for label in logs}
    cells = []
    for label, own in logs.items():
        for trial, log in enumerate(own):
            cell = loaded(world, Truth(label, policy), trial)
            cells.append(replace(cell, record=replace(cell.record, **fields(label)), path=f"{label}{trial}"))
            facts[label][trial] = collect_log_facts(cells[-1], log.records)
    return facts, measurements_of(cells)
