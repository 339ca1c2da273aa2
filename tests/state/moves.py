"""A routed cell whose sessions move, as events: every reader of a run must derive the same from them."""

from __future__ import annotations

from dataclasses import replace

from results.records.events import (
    CellChanged,
    CellState,
    Event,
    LifecycleMeasured,
    MigrationChanged,
    RoutedLine,
    RoutedLoad,
    RouterSampled,
    RunChanged,
    RunState,
    StageChanged,
    StageState,
)
from tests.state.plans import CELLS, STAGES

CELL, OTHER = CELLS[0].cell, CELLS[1].cell
LOADS = (RoutedLoad("e0", True, "", 6, 9_000, 18_000, 2), RoutedLoad("e1", True, "", 1, 200, 900, 1))


def second(at_s: float, *picks: tuple[str, str, str], cell: str = CELL) -> RouterSampled:
    """A tick whose picks (session, instance, reason) lie in the second before `at_s`."""
    lines = tuple(
        RoutedLine(at_s - 1 + n / 10, f"r{at_s:.0f}-{n}", session, instance, reason)
        for n, (session, instance, reason) in enumerate(picks)
    )
    return RouterSampled(cell, "ear", LOADS, 3, {"affinity": len(picks)}, lines)


def step(phase: str, at_s: float, migration: str = "r3-0", session: str = "s1", **more: object) -> MigrationChanged:
    """A step of the migration of a session from e0 to e1."""
    event = MigrationChanged(migration, session, 2, "e0", "e1", phase, cell=CELL, t_unix_s=at_s)  # type: ignore[arg-type]
    return replace(event, **more)  # type: ignore[arg-type]


def request(repetition: int, **more: object) -> LifecycleMeasured:
    """One request of C = 0, N = 512, O = 32."""
    phases = {"routing": 0.1, "p_queue": 0.4, "p_prefill": 20.0, "zmq_handshake": 0.5, "rdma_transfer": 4.0,
              "transfer_signal": 0.3, "d_promotion": 1.0, "d_first_token": 3.0, "d_decode": 60.0}  # fmt: skip
    event = LifecycleMeasured(
        OTHER, 0, 512, 32, repetition, phases_ms=phases, e2e_ms=90.0, ttft_ms=29.3, transfer_ms=4.8, bytes=8_388_608,
        bandwidth_gbps=16.8, residual_share=0.008, colo_ttft_ms=25.0,
    )  # fmt: skip
    return replace(event, **more)  # type: ignore[arg-type]


STORY: tuple[Event, ...] = (
    RunChanged(RunState.RUNNING, pid=7),
    StageChanged(STAGES[0].stage, StageState.RUNNING),
    CellChanged(CELL, CellState.RUNNING, 1),
    second(1.0, ("s1", "e0", "cold"), ("s2", "e0", "cold"), ("s3", "e1", "cold")),
    second(2.0, ("s1", "e0", "affinity"), ("s2", "e0", "affinity")),
    step("refused", 2.2, "r2-1", "s2", target="", reason="no_colder_target", text="e1 has no room"),
    step("refused", 2.6, "r2-2", "s4", target="", reason="no_colder_target", text="e1 has no room"),
    second(3.0, ("s1", "e1", "hot")),
    step("started", 3.1, text="9000 pending prefill tokens > 4096"),
    step("done", 3.2, reason="transferred", external_tokens=1024, bytes=524_288, transfer_s=0.031),
    second(4.0, ("s2", "e1", "hot"), ("s1", "e1", "affinity")),
    step("started", 4.1, "r4-0", "s2"),
    step("failed", 4.4, "r4-0", "s2", reason="e1 did not answer"),
    CellChanged(CELL, CellState.DONE, 1),
    CellChanged(OTHER, CellState.RUNNING, 1),
    request(1, warmup=True),
    request(2),
    request(3, discarded="D held 16 tokens of the context, not 0"),
)
