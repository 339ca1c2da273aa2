"""The faults of a batch: each follows from the batch's seed and its position alone, so that it can be repeated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

ROLES = ("run", "load", "router", "engine", "guard", "fork_server", "console")
STARVED = ("run", "load", "router", "engine")
"""Whose descriptors and memory are limited while they work."""
DISK = "disk of run"
KINDS = (
    *(f"kill {role}" for role in ROLES),
    *(f"stop {role}" for role in ROLES),
    *(f"descriptors of {role}" for role in STARVED),
    *(f"memory of {role}" for role in STARVED),
    DISK,
)
PORT = "take port"
OTHER_KINDS = (PORT,)
"""Only where they are asked for by name: batches that named no kind drew from KINDS, and must draw the same again."""
WANTED = 50
"""Faults of each kind that the table is to have."""

MOMENTS = {"present": 12.0, "starting": 3.0, "measuring": 3.0, "publishing": 0.4, "done": 1.0}
"""What a fault waits for, and the longest delay (s) after it: the target is there; an engine starts; a load sends; a
load has ended, so that its artifacts are put in place; a cell is done, so that engines stop and others start. Several
faults may be `present` at once: their delays spread them over a cell."""
MOMENTS_OF = {
    "run": ("present", "starting", "measuring", "publishing", "done"),
    "load": ("present", "measuring"),
    "router": ("present", "measuring"),
    "engine": ("present", "starting", "measuring", "publishing"),
    "guard": ("present", "starting", "measuring", "publishing"),
    "fork_server": ("present", "starting", "measuring", "done"),
    "console": ("present", "measuring", "done"),
    "port": ("present", "done"),
}
AT_ONCE = 0.5
"""Share of faults that need nothing but their target; the others wait for any of its moments."""
HOLD_S = (0.3, 6.0)
"""How long a process stays stopped, or a resource short: the logarithm is uniform. The larger bound exceeds that of a
stalled step, 5 s."""
ROUTING, CONNECTOR_TAX, PD_LIFECYCLE = EXPERIMENTS = ("routing", "connector-tax", "pd-lifecycle")
SHARES = (0.3, 0.5, 0.2)
"""Of the faults that every experiment can meet: a cell of connector-tax is a third as long as one of the others."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, as it is drawn."""

    kind: str
    moment: str
    delay_s: float
    """After the moment."""
    hold_s: float
    """How long it lasts; 0 for a kill."""
    draw: float
    """0..1: which of several processes of the role, and how little of the resource is left."""

    @property
    def action(self) -> str:
        """`kill`, `stop`, `descriptors`, `memory`, `disk` or `take`."""
        return self.kind.partition(" ")[0]

    @property
    def role(self) -> str:
        """Whose process it is for; of the disk, the run's; `port` = that of an engine, while no engine has it."""
        return self.kind.rpartition(" ")[2]


@dataclass(frozen=True, slots=True)
class Script:
    """The faults of one campaign, in their order, and the experiment that they meet."""

    number: int
    """In its batch."""
    experiment: str
    faults: tuple[Fault, ...]


def draw_batch(seed: int, count: int, kinds: Sequence[str], each: int) -> tuple[Script, ...]:
    """`count` faults, as many of one kind as of another, in campaigns of at most `each`.

    A fault meets an experiment that has its target and its moment: no router in connector-tax, and in pd-lifecycle no
    load process, since the run process sends itself.
    """
    draw = random.Random(seed)
    by_experiment: dict[str, list[Fault]] = {experiment: [] for experiment in EXPERIMENTS}
    order: list[str] = []
    for _ in range(count):
        if not order:
            order = draw.sample(list(kinds), len(kinds))
        fault = _draw_fault(draw, order.pop())
        shares = [share if can_meet(fault, name) else 0.0 for name, share in zip(EXPERIMENTS, SHARES, strict=True)]
        by_experiment[draw.choices(EXPERIMENTS, shares)[0]].append(fault)
    parts = [
        (experiment, tuple(faults[first : first + each]))
        for experiment, faults in by_experiment.items()
        for first in range(0, len(faults), each)
    ]
    draw.shuffle(parts)  # so that the campaigns of a part of the batch meet every experiment
    return tuple(Script(number, *part) for number, part in enumerate(parts))


def can_meet(fault: Fault, experiment: str) -> bool:
    """Whether a run of the experiment has the fault's target and its moment."""
    if experiment == CONNECTOR_TAX:
        return fault.role != "router"
    return experiment == ROUTING or not (fault.role == "load" or fault.moment == "publishing")


def _draw_fault(draw: random.Random, kind: str) -> Fault:
    moments = MOMENTS_OF[kind.rpartition(" ")[2]]
    moment = "present" if draw.random() < AT_ONCE else draw.choice(moments)
    delay_s = draw.uniform(0.0, MOMENTS[moment])
    hold_s = 0.0 if kind.startswith("kill") else HOLD_S[0] * (HOLD_S[1] / HOLD_S[0]) ** draw.random()
    return Fault(kind, moment, round(delay_s, 3), round(hold_s, 3), round(draw.random(), 3))
