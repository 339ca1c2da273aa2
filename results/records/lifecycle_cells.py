"""The files of a `pd-lifecycle` cell beside its records: the commit mark, why it failed, and its client's requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from results.records.declaration import decode_versioned, rename_fields
from results.records.gpu import GpuUse
from results.records.lifecycle import LoadSpan
from results.records.schemas import RequestRecord

CELL_VERSION = 3
"""Version of `cell.json`."""


@dataclass(frozen=True, slots=True)
class DiscardedMeasurement:
    """A repetition that was measured again."""

    repetition: int
    """From 1."""
    reason: str = ""
    """Why it does not count."""


@dataclass(frozen=True, slots=True)
class HeldTokens:
    """Tokens of a prefix that each engine holds, by its own count."""

    prefill: int
    """The prefill engine."""
    decode: int
    """The decode engine."""
    plain: int | None = None
    """The plain combined engine; None = there is none."""


@dataclass(frozen=True, slots=True)
class Seeding:
    """How the caches were seeded with a prefix."""

    prior_context: int
    """C: tokens of the prefix."""
    emptied: str
    """How they were emptied before, and how that was verified."""
    attempts: int
    """How often the prefix was computed until every engine held all of it."""
    held: HeldTokens
    """What each engine held then."""
    t_unix_s: float
    """When they held it, by the wall clock."""


@dataclass(frozen=True, slots=True)
class Aged:
    """The prompts that aged the KV pool of each new engine."""

    requests: int = 0
    """Per engine."""
    tokens: int = 0
    """Tokens of their prompts."""
    duration_s: float = 0.0
    """How long it took."""
    reason: str = ""
    """Why there were none."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """One request that set up connections after the engines' start."""

    purpose: str
    """`handover`, `colo` or `plain`."""
    ttft_ms: float | None
    """None = no token came."""
    status: str
    """As in RequestRecord."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleEngine:
    """One engine of a cell."""

    instance: str = ""
    """By the journal's name."""
    config: str = ""
    url: str = ""
    """Base URL."""
    pid: int | None = None
    """None = not started by this run."""
    started_by: str = ""
    """`spawn` or `fork_server`, with the executor."""
    files: str = ""
    """Its folder, below `results/lifecycle/`."""
    block_tokens: int | None = None
    """Block size of its KV cache."""
    kv_capacity_tokens: int | None = None
    """Size of the smallest KV cache of the cell's engines; None = an engine does not state it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCell:
    """The commit mark of a cell: `cell.json`, written last."""

    cell: str
    prior_context: int = 0
    new_tokens: int = 0
    output_length: int = 0
    attempt: int = 1
    records: tuple[str, ...] = ()
    """Names of its records' files, by repetition."""
    discarded: tuple[DiscardedMeasurement, ...] = ()
    """Measurements that were repeated."""
    seedings: tuple[Seeding, ...] = ()
    """Within the cell."""
    configs: tuple[str, ...] = ()
    """As the preset names them."""
    dispatch: str = ""
    """`sequential`: the decode request is sent after the answer to the prefill request."""
    order: str = ""
    """Order of a repetition's requests: `counterbalanced` or `handover_first`."""
    baseline: str = ""
    """How the requests for a combined engine were sent: `router`; empty = there were none."""
    counted_by: str = ""
    """Source of the tokens that the decode engine held: `probe` or `counters`."""
    position: int = 0
    """Position of its configuration in the grid, from 0."""
    turn: int = 0
    """Position in time among the configurations of its trial, from 0."""
    trial: int = 0
    aged: Aged = field(default_factory=Aged)
    """How new engines were aged before the first cell."""
    warm_ups: tuple[WarmUp, ...] = ()
    """Before the first cell on these engines."""
    load: Mapping[str, LoadSpan] = field(default_factory=dict)
    """By side."""
    engines: Mapping[str, LifecycleEngine] = field(default_factory=dict)
    """By side: `prefill`, `decode`, and `plain` where there is one."""
    clocks: Mapping[str, str] = field(default_factory=dict)
    """Boot ids of the hosts of `client` and `router`."""
    headline: Mapping[str, Any] = field(default_factory=dict)
    """Medians over the counted repetitions, for status and console."""
    degraded: str = ""
    """Why the cell is incomplete; empty = it is not."""
    git_commit: str | None = None
    """Commit of Tracon's own source; None = not known."""
    git_reason: str = ""
    """Why it is not known, or that the tree differs from it."""
    version: int = CELL_VERSION
    gpu: GpuUse = field(default_factory=GpuUse)
    """From its first handover to its last."""
    checksums: Mapping[str, str] = field(default_factory=dict)
    """File name, relative to this one, to SHA-256."""

    @property
    def block_tokens(self) -> int | None:
        """Block size of the prefill instance, whose blocks the transfer moves."""
        return self.engines["prefill"].block_tokens if "prefill" in self.engines else None

    @property
    def capacity_tokens(self) -> int | None:
        """Size of the smaller KV cache of those reported."""
        known = [one.kv_capacity_tokens for one in self.engines.values() if one.kv_capacity_tokens]
        return min(known, default=None)


def decode_cell(raw: bytes) -> MeasuredCell:
    """A `cell.json` of any version. Raises UnknownVersion, and one of DAMAGED_JSON where it is damaged."""
    upgrades = {1: upgrade_cell_from_1, 2: upgrade_cell_from_2}
    return decode_versioned(raw, MeasuredCell, CELL_VERSION, upgrades, unstated=1)


def upgrade_cell_from_1(row: dict[str, Any]) -> dict[str, Any]:
    """What version 2 added has its default."""
    return row | {"version": 2}


def upgrade_cell_from_2(row: dict[str, Any]) -> dict[str, Any]:
    """A cell of version 2 with the present names of its position, of attempts and of a duration."""
    row = rename_fields(row, {"place": "position"}) | {"version": 3}
    if "seedings" in row:
        row["seedings"] = [rename_fields(one, {"tries": "attempts"}) for one in row["seedings"]]
    if "aged" in row:
        row["aged"] = rename_fields(row["aged"], {"seconds": "duration_s"})
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFailure:
    """Why the last attempt at a cell failed: `failed.json`, which replaces its other files."""

    cell: str = ""
    attempt: int = 1
    reason: str = ""
    """In words."""
    discarded: tuple[DiscardedMeasurement, ...] = ()
    """Measurements that were repeated."""
    measured: int = 0
    """Repetitions that counted before it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecycleRequest(RequestRecord):
    """One request of a cell's client: a row of `requests.jsonl`."""

    request: str
    """Its `x-request-id`."""
    purpose: str
    """`handover`, `colo` (the decode engine alone) or `plain` (an engine without a connector)."""
    repetition: int
    """From 1."""
    first: bool
    """It is the first of its repetition."""
    position: int | None = None
    """Position in its repetition, from 0; None = not recorded. Older runs have `place`, or neither."""
    others: tuple[str, ...] = ()
    """Names of the others of its repetition; older runs have one in `pair`."""
