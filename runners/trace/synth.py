"""Generates agentic sessions from statistics: a pure function of (statistics, number, seed), streamed.

Each session depends on its number only, so a trace takes the memory of one session and about 50 bytes per session.
Random numbers are raw Philox output, which NumPy keeps stable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy import special

from results.records.trace_lines import MAIN, Turn
from runners.errors import RunnerError
from runners.trace.session import Session, Trace, TraceFacts
from runners.trace.synth_shapes import RANKS, Ints, Shapes, find_shapes
from runners.trace.synth_sharing import NO_ORIGIN, find_sharing
from runners.trace.workload_statistics import Floats, Statistics, read_statistics

_SESSION = 0x73_796E_7468  # "synth": separates these streams of random numbers from others
_RANK = _SESSION ^ 0x1_0000_0000_0000
_ARRIVAL = _SESSION ^ 0x2_0000_0000_0000
JITTER = 0.05
"""Largest relative difference of a session's lengths to those of its rank."""
OUTPUT_SIGMA = 0.8
THINK_SIGMA = 1.0
"""Sigma of the lognormal outputs and think times; the specs state only the mean of the outputs."""
_PLACE_BITS = 20


def synthesize_trace(sessions: int, seed: int = 1, statistics: Mapping[str, Any] | None = None) -> Trace:
    """Generate a trace in memory; `statistics` override the defaults. Raises RunnerError for invalid parameters."""
    facts, generated = open_synthetic(sessions, seed, statistics)
    return Trace(facts, tuple(generated))


def open_synthetic(
    sessions: int, seed: int = 1, statistics: Mapping[str, Any] | None = None
) -> tuple[TraceFacts, Iterator[Session]]:
    """As `synthesize_trace`, as a stream in the order of arrival."""
    if not 1 <= sessions < 1 << 40:
        raise RunnerError(f"{sessions} sessions cannot be generated", remedy="set the number of sessions to 1 or more")
    if not 0 <= seed < 1 << 64:
        raise RunnerError(f"a seed cannot be {seed}", remedy="choose a number from 0 to 2^64 - 1")
    target = read_statistics(statistics)
    facts = TraceFacts(
        source=f"synth-{sessions}-{seed}", block_tokens=target.block_tokens, tail_rule="floor", hash_scope="global"
    )
    return facts, _Generator(target, find_shapes(target, sessions), sessions, seed).generate_sessions()


class _Generator:
    def __init__(self, target: Statistics, shapes: Shapes, sessions: int, seed: int) -> None:
        self._wanted = target
        self._shapes = shapes
        self._seed = seed
        self._arrivals_s = self._draw_arrivals(sessions)
        self._ranks = self._draw_ranks(sessions)
        self._sharing = find_sharing(target, shapes, self._ranks)
        self._mean_output = shapes.mean_tokens / target.input_output_ratio
        if sessions <= RANKS:
            self._mean_output *= self._compute_output_correction()

    def _compute_output_correction(self) -> float:
        """Factor that corrects the random deviation of the output lengths of few sessions."""
        inputs = outputs = 0.0
        for number in range(self._ranks.size):
            lengths = self._draw_lengths(number)
            inputs += float(lengths.sum())
            outputs += float(self._draw_outputs(number, lengths.size).sum())
        return inputs / outputs / self._wanted.input_output_ratio

    def generate_sessions(self) -> Iterator[Session]:
        return (self._generate_session(number) for number in range(self._ranks.size))

    def _draw_arrivals(self, sessions: int) -> Floats:
        raw = np.random.Philox(key=np.array([self._seed, _ARRIVAL], dtype=np.uint64)).random_raw(sessions)
        moments = np.sort((raw >> np.uint64(11)) * 2.0**-53) * self._wanted.span_s
        return np.asarray(moments - moments[0])

    def _draw_ranks(self, sessions: int) -> Ints:
        """Spread the sessions evenly over all ranks, in random order: small traces are as skewed as possible."""
        raw = np.random.Philox(key=np.array([self._seed, _RANK], dtype=np.uint64)).random_raw(sessions)
        order = np.argsort(raw, kind="stable")
        return np.asarray((order + 0.5) / sessions * self._shapes.ranks, dtype=np.int64)

    def _generate_session(self, number: int) -> Session:
        lengths = self._draw_lengths(number)
        prefix = self._count_prefix_blocks(number)
        origin = int(self._sharing.origins[number])
        common = prefix
        if origin != NO_ORIGIN:
            prefix = self._count_prefix_blocks(origin)
            first = min(float(lengths[0]), float(self._draw_lengths(origin)[0]))
            common = prefix + int(self._sharing.common_share * first / self._wanted.block_tokens)
        lengths = np.maximum(lengths, common * self._wanted.block_tokens + 1)
        blocks = self._assign_blocks(number, origin, prefix, common, int(lengths[-1]) // self._wanted.block_tokens)
        return Session(f"s{number}", tuple(self._generate_turns(number, lengths, blocks)))

    def _draw_lengths(self, number: int) -> Ints:
        jitter = 1 + JITTER * (2 * float(self._draw_uniforms(number, 0, 1)[0]) - 1)
        return np.maximum(np.rint(self._shapes.list_turn_lengths(int(self._ranks[number])) * jitter), 1).astype(
            np.int64
        )

    def _count_prefix_blocks(self, number: int) -> int:
        """Whole blocks of the shared prefix: one more in some sessions, so that the mean length is exact."""
        blocks = self._sharing.prefix_tokens / self._wanted.block_tokens
        return int(blocks + float(self._draw_uniforms(number, 0, 2)[1]))

    def _assign_blocks(self, number: int, origin: int, prefix: int, common: int, count: int) -> list[int]:
        """Ids of a session's blocks: the shared prefix, the copied blocks, its own blocks."""
        common = min(common, count)
        copied = range(((origin + 1) << _PLACE_BITS) + prefix, ((origin + 1) << _PLACE_BITS) + common)
        own = range(((number + 1) << _PLACE_BITS) + max(prefix, common), ((number + 1) << _PLACE_BITS) + count)
        return [*range(min(prefix, count)), *(copied if origin != NO_ORIGIN else ()), *own]

    def _generate_turns(self, number: int, lengths: Ints, blocks: list[int]) -> Iterator[Turn]:
        target, count = self._wanted, lengths.size
        outputs = np.maximum(1, np.rint(self._draw_outputs(number, count)))
        thinks = _draw_lognormal(self._draw_uniforms(number, 2, count), target.think_mean_s, THINK_SIGMA)
        sent_s, cached = float(self._arrivals_s[number]), 0
        for index in range(count):
            length, output = int(lengths[index]), int(outputs[index])
            think_s = float(round(thinks[index], 3)) if index else None
            sent_s += think_s or 0.0
            yield Turn(
                agent=MAIN,
                turn=index,
                arrival_s=sent_s,
                think_s=think_s,
                input_tokens=length,
                output_tokens=output,
                hashes=tuple(blocks[: length // target.block_tokens]),
                after=(index - 1,) if index else (),
            )
            sent_s += (length - cached) / target.prefill_tokens_per_s + output / target.decode_tokens_per_s
            cached = length

    def _draw_outputs(self, number: int, count: int) -> Floats:
        return _draw_lognormal(self._draw_uniforms(number, 1, count), self._mean_output, OUTPUT_SIGMA)

    def _draw_uniforms(self, number: int, stream: int, count: int) -> Floats:
        """Uniform random numbers in (0, 1) of one session and stream."""
        counter = np.array([0, number, stream, 0], dtype=np.uint64)
        raw = np.random.Philox(key=np.array([self._seed, _SESSION], dtype=np.uint64), counter=counter).random_raw(count)
        return np.asarray(((raw >> np.uint64(11)) + 0.5) * 2.0**-53)


def _draw_lognormal(uniforms: Floats, mean: float, sigma: float) -> Floats:
    return np.asarray(mean * np.exp(sigma * special.ndtri(uniforms) - sigma**2 / 2))
