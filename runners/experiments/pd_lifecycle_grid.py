"""The grid of `pd-lifecycle` as a profile states it (`[experiment.pd-lifecycle.<preset>]`) and the user changed it."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal

import msgspec

from results.lifecycle.settings import Settings
from runners.errors import RunnerError
from runners.experiments.engines import EngineChoice
from runners.experiments.settings import put, setting

EXPERIMENT = "pd-lifecycle"
EXAMPLE = "new_tokens=[512,2048]"
REMEDY = "correct that key in the profile or in --set; docs/pd-lifecycle.md lists them all"


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What requests take, for the time estimate: a prefill that is linear in its tokens and in the context of each."""

    prefill_s_per_1k: float
    attention_s_per_1k2: float = 0.0
    """More for every 1000 new tokens and every 1000 tokens that each of them attends to."""
    token_s: float = 0.0
    """Per output token after the first."""
    around_s: float = 0.1
    """One repetition beside its prefills and decodes: the transfer, seeing what both caches hold, and waiting until all
    of it is written down."""
    age_s: float = 10.0
    """Sending prompts through the KV pools of fresh engines."""

    def prefill_s(self, prior_context: int, new_tokens: int) -> float:
        new_1k, seen_1k = new_tokens / 1000, (prior_context + new_tokens / 2) / 1000
        return new_1k * (self.prefill_s_per_1k + self.attention_s_per_1k2 * seen_1k)


class Shape(msgspec.Struct, frozen=True):
    """One cell: C, N and O of specs/pd_lifecycle, "Independent Variables", in tokens."""

    prior_context: int
    new_tokens: int
    output_length: int

    @property
    def name(self) -> str:
        """`C4096_N512_O32`, as in the names of its records."""
        return f"C{self.prior_context}_N{self.new_tokens}_O{self.output_length}"

    @property
    def input_tokens(self) -> int:
        return self.prior_context + self.new_tokens

    @property
    def tokens(self) -> int:
        """All that the decode instance holds at the end."""
        return self.input_tokens + self.output_length


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One preset of the experiment."""

    prior_context: tuple[int, ...]
    """C: prompt tokens in both prefix caches before the request."""
    new_tokens: tuple[int, ...]
    """N: prompt tokens that the prefill instance computes and moves."""
    output_length: tuple[int, ...]
    """O."""
    engine_start_s: float
    """What both engines take until they are ready, for the time estimate."""
    expected: Expected
    configs: tuple[str, ...] = ("mooncake_both",)
    """One config for both engines, or the prefill instance's and the decode instance's."""
    repetitions: int = 5
    """Of every cell; each is one request through the router, and the same one on a combined instance."""
    warmup_repetitions: int = 2
    """So many of them come first and are in no result: the first transfers pay for connections."""
    discards: int = 5
    """Measurements of one cell that may be thrown away and made again before it fails."""
    max_input_tokens: int | None = None
    """C + N beyond it is not measured; None = what the engines' context holds."""
    evict: Literal["reset", "restart"] = "reset"
    """How the caches are emptied between two values of C: POST /reset_prefix_cache, or fresh engines."""
    order: Literal["counterbalanced", "handover_first"] = "counterbalanced"
    """Of a repetition's two requests: either comes first in half of them, or the one that is handed over always."""
    age: bool = True
    """Send random prompts once through the whole KV pool of fresh engines before the first cell, so that no cell
    meets blocks in the order of a new pool."""
    dispatch: str = "sequential"
    """`sequential`: the decode leg is sent when the prefill leg has been answered."""
    baseline: bool = True
    """Measure the same request on a combined instance beside each repetition."""
    request_timeout_s: float = 600.0
    seed: int = 1
    gpus: int = 0
    """GPUs of the host that both engines share; 0 = each has its own."""
    preflight_s: float = 30.0
    engine: EngineChoice = EngineChoice()
    analysis: Settings = Settings()

    def shapes(self) -> Iterator[Shape]:
        """Every cell in the specification's order: C outside, then N, then O."""
        for prior in self.prior_context:
            for new in self.new_tokens:
                for output in self.output_length:
                    yield Shape(prior, new, output)

    def in_turn(self, seed: int) -> list[Shape]:
        """Every cell in the order of its measurement: one C after the other, so that caches are emptied and seeded once
        for each; the seed decides which C comes when, and which N and O within it.

        In rising order C, N and O could not be told from the time since the engines started.
        """
        return sorted(
            self.shapes(), key=lambda shape: (_drawn(seed, f"C{shape.prior_context}"), _drawn(seed, shape.name))
        )

    def combined_first(self, shape: Shape, repetition: int) -> bool:
        """Whether the combined instance's request comes before the one that is handed over.

        By the cell's places in the grid and the repetition, so that one that is made again keeps its order.
        """
        if self.order == "handover_first":
            return False
        places = (
            self.prior_context.index(shape.prior_context),
            self.new_tokens.index(shape.new_tokens),
            self.output_length.index(shape.output_length),
        )
        return (sum(places) + repetition) % 2 == 1

    @property
    def prefill_config(self) -> str:
        return self.configs[0]

    @property
    def decode_config(self) -> str:
        return self.configs[-1]

    def why_not(self, shape: Shape, max_model_len: int) -> str:
        """Why a cell of the grid cannot be measured with this context; empty = it can."""
        if shape.tokens > max_model_len:
            return f"C + N + O = {shape.tokens} tokens, and the engines' max_model_len is {max_model_len}"
        if self.max_input_tokens is not None and shape.input_tokens > self.max_input_tokens:
            return f"C + N = {shape.input_tokens} tokens, and max_input_tokens is {self.max_input_tokens}"
        return ""


def grid_of(
    tables: Mapping[str, Mapping[str, Any]],
    profile: str,
    preset: str,
    *,
    configs: Sequence[str] = (),
    settings: Sequence[str] = (),
) -> Grid:
    """The validated grid of a preset with the user's configs and settings (`KEY=VALUE`, the key of a grid, dotted).

    Raises RunnerError naming the profile, the preset and the wrong key.
    """
    if preset not in tables:
        known = ", ".join(sorted(tables)) or "none"
        raise RunnerError(
            f"profile {profile} has no preset {preset!r} for {EXPERIMENT}", remedy=f"choose one of: {known}"
        )
    where = f"profile {profile}, [experiment.{EXPERIMENT}.{preset}]"
    raw = copy.deepcopy(dict(tables[preset]))
    for text in settings:
        put(raw, *setting(text, EXAMPLE))
    if configs:
        raw["configs"] = list(configs)
    try:
        grid = msgspec.convert(raw, Grid)
    except msgspec.ValidationError as error:
        raise RunnerError(f"{where}: {error}", remedy=REMEDY) from error
    unknown = set(raw.get("analysis", {})) - {field.name for field in fields(Settings)}
    if unknown:
        raise RunnerError(f"{where}: analysis has no setting {', '.join(sorted(unknown))}", remedy=REMEDY)
    _check(grid, where)
    return grid


def _drawn(seed: int, name: str) -> bytes:
    """A place in a random order, the same for ever."""
    return hashlib.sha256(f"{seed}/{name}".encode()).digest()


def _check(grid: Grid, where: str) -> None:
    lengths = {name: getattr(grid, name) for name in ("prior_context", "new_tokens", "output_length")}
    block = grid.engine.block_size
    problems = [
        *((list(found) != sorted(set(found)), f"{name} must rise without repeats") for name, found in lengths.items()),
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
            "warmup_repetitions must leave a repetition to be measured",
        ),
        (grid.discards < 0, "discards must not be negative"),
        (
            grid.dispatch != "sequential",
            f"dispatch {grid.dispatch!r}: a handover sends the decode leg when the prefill leg was answered, so "
            "`sequential` is all there is",
        ),
        (grid.request_timeout_s <= 0, "request_timeout_s must be above 0"),
    ]
    for wrong, text in problems:
        if wrong:
            raise RunnerError(f"{where}: {text}", remedy=REMEDY)
