"""The grid of `pd-lifecycle`: a profile's `[experiment.pd-lifecycle.<preset>]` with the user's changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Literal

import msgspec

from results.pd_lifecycle.analysis_settings import Settings
from results.records.layout import append_trial
from results.records.lifecycle import RequestConfig
from results.records.plan import CellPlan
from runners.experiments.engine_choice import EngineChoice
from runners.experiments.pd_lifecycle.static_pd_or_combined import COLO, HANDOVER, PLAIN
from runners.experiments.settings import (
    Tables,
    convert_grid,
    find_preset,
    parse_setting,
    refuse_problems,
    set_key,
)

EXPERIMENT = "pd-lifecycle"
PROBE_CELL = "preflight/probe"
SHAPE_PARAMS = ("prior_context", "new_tokens", "output_length")
"""C, N and O of specs/pd_lifecycle, "Independent Variables", in tokens."""
EXAMPLE = "new_tokens=[512,2048]"
REMEDY = "correct that key in the profile or in --set; docs/pd-lifecycle.md lists them all"


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Durations for the time estimate: a prefill is linear in its tokens and in the context of each token."""

    prefill_s_per_1k: float
    attention_s_per_1k2: float = 0.0
    """Additional seconds per 1000 new tokens and per 1000 tokens to which each of them attends."""
    token_s: float = 0.0
    """Per output token after the first."""
    around_s: float = 0.1
    """The rest of a repetition after prefills and decodes: the transfer, the check of both caches, and the wait for the
    evidence on disk."""
    age_s: float = 10.0
    """Aging the KV pools of fresh engines."""

    def prefill_s(self, prior_context: int, new_tokens: int) -> float:
        new_1k, seen_1k = new_tokens / 1000, (prior_context + new_tokens / 2) / 1000
        return new_1k * (self.prefill_s_per_1k + self.attention_s_per_1k2 * seen_1k)


def make_shape_params(shape: RequestConfig) -> dict[str, int]:
    """C, N and O as a cell of the plan holds them."""
    return dict(zip(SHAPE_PARAMS, shape.key, strict=True))


def read_shape(cell: CellPlan) -> RequestConfig:
    """C, N and O of a cell of the sweep."""
    return RequestConfig(*(cell.params[name] for name in SHAPE_PARAMS))


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One preset of the experiment."""

    prior_context: tuple[int, ...]
    """C: prompt tokens in both prefix caches before the request."""
    new_tokens: tuple[int, ...]
    """N: prompt tokens that the prefill instance computes and transfers."""
    output_length: tuple[int, ...]
    """O."""
    engine_start_s: float
    """Seconds until both engines are ready, for the time estimate."""
    expected: Expected
    configs: tuple[str, ...] = ("mooncake_both",)
    """One config for both engines, or the prefill instance's and the decode instance's."""
    plain: str = "plain"
    """Config of a combined engine without a connector; empty = it is not measured."""
    trials: int = 3
    """Launches of every engine: each trial measures the whole grid on fresh engines."""
    repetitions: int = 5
    """Repetitions of every cell: one handover request, and the same request on each combined engine."""
    warmup_repetitions: int = 2
    """The first N repetitions are shown beside the others and enter no result."""
    discards: int = 5
    """Measurements of one cell that may be discarded and repeated before it fails."""
    max_input_tokens: int | None = None
    """Largest C + N that is measured; None = the engines' context."""
    evict: Literal["reset", "restart"] = "reset"
    """How to empty the caches between two values of C: POST /reset_prefix_cache, or fresh engines."""
    order: Literal["counterbalanced", "handover_first"] = "counterbalanced"
    """Order of a repetition's requests: of any two, each comes first in half of the repetitions; or always the
    handover, then the decode engine alone, then the plain engine."""
    age: bool = True
    """Fill the whole KV pool of fresh engines once with random prompts, so that no cell uses blocks in the order of a
    new pool."""
    dispatch: str = "sequential"
    """`sequential`: the router sends the decode request after the answer to the prefill request."""
    baseline: bool = True
    """Measure the same request on the decode engine alone in each repetition."""
    request_timeout_s: float = 600.0
    seed: int = 1
    gpus: int = 0
    """GPUs that both engines share; 0 = each has its own."""
    preflight_s: float = 30.0
    engine: EngineChoice = EngineChoice()
    analysis: Settings = Settings()

    def list_shapes(self) -> Iterator[RequestConfig]:
        """Every cell in the specification's order: C outside, then N, then O."""
        for prior in self.prior_context:
            for new in self.new_tokens:
                for output in self.output_length:
                    yield RequestConfig(prior, new, output)

    def order_shapes(self, seed: int, trial: int = 0) -> list[RequestConfig]:
        """Every cell in the order of measurement: all cells of one C in a row, so that each C is seeded once. The seed
        and the trial decide the order of C, and of N and O within it.

        In rising order, the effects of C, N and O could not be separated from the time since the engines started.
        """
        drawn = append_trial(str(seed), trial)

        def rank_of(shape: RequestConfig) -> tuple[bytes, bytes]:
            return _draw_rank(drawn, f"C{shape.prior_context}"), _draw_rank(drawn, shape.label)

        return sorted(self.list_shapes(), key=rank_of)

    def order_requests(self, shape: RequestConfig, repetition: int, trial: int, *, plain: bool) -> list[str]:
        """The requests of a repetition in their order. plain: whether it has one on the plain combined engine.

        Each trial begins with the next request; every second repetition has the order reversed. That depends on the
        cell's indexes in the grid and the repetition, so a repeated measurement keeps its order.
        """
        requests = [HANDOVER, *([COLO] if self.baseline else []), *([PLAIN] if plain else [])]
        if self.order == "handover_first":
            return requests
        first = trial % len(requests)
        requests = [*requests[first:], *requests[:first]]
        indexes = (
            self.prior_context.index(shape.prior_context),
            self.new_tokens.index(shape.current_new_tokens),
            self.output_length.index(shape.output_length),
        )
        return requests[::-1] if (sum(indexes) + repetition) % 2 else requests

    @property
    def prefill_config(self) -> str:
        return self.configs[0]

    @property
    def decode_config(self) -> str:
        return self.configs[-1]

    @property
    def all_configs(self) -> tuple[str, ...]:
        """Each config once."""
        return tuple(dict.fromkeys((*self.configs, *([self.plain] if self.plain else []))))

    def why_not(self, shape: RequestConfig, max_model_len: int) -> str:
        """Why a cell of the grid cannot be measured with this context; empty = it can."""
        if shape.tokens > max_model_len:
            return f"C + N + O = {shape.tokens} tokens, and the engines' max_model_len is {max_model_len}"
        if self.max_input_tokens is not None and shape.total_input_length > self.max_input_tokens:
            return f"C + N = {shape.total_input_length} tokens, and max_input_tokens is {self.max_input_tokens}"
        return ""


def read_grid(
    tables: Tables,
    profile: str,
    preset: str,
    *,
    configs: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> Grid:
    """The validated grid of a preset with the user's configs and settings (`KEY=VALUE` with a dotted key of the grid).

    Raises RunnerError, which names the profile, the preset and the wrong key.
    """
    raw, where = find_preset(tables, EXPERIMENT, profile, preset)
    for text in settings:
        set_key(raw, *parse_setting(text, EXAMPLE))
    if configs:
        raw["configs"] = list(configs)
    grid = convert_grid(raw, Grid, where, REMEDY)
    unknown = sorted(set(raw.get("analysis", {})) - {field.name for field in fields(Settings)})
    unknown_setting = (bool(unknown), f"analysis has no setting {', '.join(unknown)}")
    refuse_problems([unknown_setting, *_list_grid_problems(grid)], where, REMEDY)
    return grid


def _draw_rank(seed: str, name: str) -> bytes:
    """A stable sort key for a random order."""
    return hashlib.sha256(f"{seed}/{name}".encode()).digest()


def _list_grid_problems(grid: Grid) -> list[tuple[bool, str]]:
    """(is wrong, what must hold)."""
    lengths = {name: getattr(grid, name) for name in ("prior_context", "new_tokens", "output_length")}
    block = grid.engine.block_size
    unsorted = {name: list(values) != sorted(set(values)) for name, values in lengths.items()}
    return [
        *((wrong, f"{name} must rise without repeats") for name, wrong in unsorted.items()),
        (not all(lengths.values()), "prior_context, new_tokens and output_length must each hold a length"),
        (any(tokens < 0 for tokens in grid.prior_context), "prior_context must not be below 0"),
        (any(tokens < 1 for tokens in (*grid.new_tokens, *grid.output_length)), "N and O must be at least 1"),
        (
            block is not None and any(tokens % block for tokens in grid.prior_context),
            f"every prior_context must be a whole number of blocks of {block}: caches hold whole blocks",
        ),
        (not 1 <= len(grid.configs) <= 2, "configs must be one for both engines, or one for each"),
        (
            not 0 <= grid.warmup_repetitions < grid.repetitions,
            "warmup_repetitions must leave a measured repetition",
        ),
        (grid.trials < 1, "trials must be at least 1"),
        (grid.discards < 0, "discards must not be negative"),
        (
            grid.dispatch != "sequential",
            f"dispatch {grid.dispatch!r} is unknown: the router sends the decode request after the answer to the "
            "prefill request, so only `sequential` is possible",
        ),
        (grid.request_timeout_s <= 0, "request_timeout_s must be above 0"),
    ]
