"""Agentic sessions generated from statistics: a pure function of (statistics, number, seed), streamed.

Every session is made by itself from its number, so that a trace of any size takes the memory of one session and about
50 bytes for each. Random numbers are raw Philox output, which NumPy promises to keep.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy import special

from runners.errors import RunnerError
from runners.trace.session import MAIN, Session, Trace, TraceFacts, Turn
from runners.trace.shapes import RANKS, Ints, Shapes, find_shapes
from runners.trace.sharing import NO_ORIGIN, find_sharing
from runners.trace.statistics import Floats, Statistics, statistics_of

_SESSION = 0x73_796E_7468  # "synth": keeps these streams of random numbers apart from others
_RANK = _SESSION ^ 0x1_0000_0000_0000
_ARRIVAL = _SESSION ^ 0x2_0000_0000_0000
JITTER = 0.05
"""Sessions of one rank differ by so much, up and down."""
OUTPUT_SIGMA = 0.8
THINK_SIGMA = 1.0
"""Outputs and think times are lognormal with these; the specs state only the outputs' mean."""
_PLACE_BITS = 20


def synthesise(sessions: int, seed: int = 1, statistics: Mapping[str, Any] | Statistics | None = None) -> Trace:
    """A generated trace in memory; `statistics` go over the defaults. Raises RunnerError for what cannot be."""
    facts, made = open_synthetic(sessions, seed, statistics)
    return Trace(facts, tuple(made))


def open_synthetic(
    sessions: int, seed: int = 1, statistics: Mapping[str, Any] | Statistics | None = None
) -> tuple[TraceFacts, Iterator[Session]]:
    """The same as a stream, in the order of arrival. Raises RunnerError for what cannot be."""
    if not 1 <= sessions < 1 << 40:
        raise RunnerError(f"{sessions} sessions cannot be generated", remedy="give 1 or more")
    if not 0 <= seed < 1 << 64:
        raise RunnerError(f"a seed cannot be {seed}", remedy="give a number from 0 to 2^64 - 1")
    wanted = statistics_of(statistics)
    facts = TraceFacts(
        format="tracon",
        source=f"synth-{sessions}-{seed}",
        time_unit_s=1.0,
        block_tokens=wanted.block_tokens,
        tail_rule="floor",
        hash_scope="global",
        hashes_chained=True,
        context_mode="self_contained",
        has_sessions=True,
    )
    return facts, _Generator(wanted, find_shapes(wanted, sessions), sessions, seed).all()


class _Generator:
    def __init__(self, wanted: Statistics, shapes: Shapes, sessions: int, seed: int) -> None:
        self._wanted = wanted
        self._shapes = shapes
        self._seed = seed
        self._arrivals_s = self._arrivals(sessions)
        self._ranks = self._drawn_ranks(sessions)
        self._sharing = find_sharing(wanted, shapes, self._ranks)
        self._mean_output = shapes.mean_tokens / wanted.input_output_ratio
        if sessions <= RANKS:
            self._mean_output *= self._output_correction()

    def _output_correction(self) -> float:
        """What chance makes the outputs of a few sessions too long or too short by."""
        inputs = outputs = 0.0
        for number in range(self._ranks.size):
            lengths = self._lengths(number)
            inputs += float(lengths.sum())
            outputs += float(self._outputs(number, lengths.size).sum())
        return inputs / outputs / self._wanted.input_output_ratio

    def all(self) -> Iterator[Session]:
        """Every session."""
        return (self._session(number) for number in range(self._ranks.size))

    def _arrivals(self, sessions: int) -> Floats:
        raw = np.random.Philox(key=np.array([self._seed, _ARRIVAL], dtype=np.uint64)).random_raw(sessions)
        moments = np.sort((raw >> np.uint64(11)) * 2.0**-53) * self._wanted.span_s
        return np.asarray(moments - moments[0])

    def _drawn_ranks(self, sessions: int) -> Ints:
        """Evenly over all ranks, in random order: small traces are as skewed as their size allows."""
        raw = np.random.Philox(key=np.array([self._seed, _RANK], dtype=np.uint64)).random_raw(sessions)
        places = np.argsort(raw, kind="stable")
        return np.asarray((places + 0.5) / sessions * self._shapes.ranks, dtype=np.int64)

    def _session(self, number: int) -> Session:
        lengths = self._lengths(number)
        prefix = self._prefix_blocks(number)
        origin = int(self._sharing.origins[number])
        common = prefix
        if origin != NO_ORIGIN:
            prefix = self._prefix_blocks(origin)
            first = min(float(lengths[0]), float(self._lengths(origin)[0]))
            common = prefix + int(self._sharing.common_share * first / self._wanted.block_tokens)
        lengths = np.maximum(lengths, common * self._wanted.block_tokens + 1)
        blocks = self._blocks(number, origin, prefix, common, int(lengths[-1]) // self._wanted.block_tokens)
        return Session(f"s{number}", tuple(self._turns(number, lengths, blocks)))

    def _lengths(self, number: int) -> Ints:
        jitter = 1 + JITTER * (2 * float(self._uniforms(number, 0, 1)[0]) - 1)
        return np.maximum(np.rint(self._shapes.turns(int(self._ranks[number])) * jitter), 1).astype(np.int64)

    def _prefix_blocks(self, number: int) -> int:
        """Whole blocks of the shared prefix: one more in some sessions, so that its mean length is right."""
        blocks = self._sharing.prefix_tokens / self._wanted.block_tokens
        return int(blocks + float(self._uniforms(number, 0, 2)[1]))

    def _blocks(self, number: int, origin: int, prefix: int, common: int, count: int) -> list[int]:
        """Ids of a session's blocks: the prefix of all, what it copies, its own."""
        common = min(common, count)
        copied = range(((origin + 1) << _PLACE_BITS) + prefix, ((origin + 1) << _PLACE_BITS) + common)
        own = range(((number + 1) << _PLACE_BITS) + max(prefix, common), ((number + 1) << _PLACE_BITS) + count)
        return [*range(min(prefix, count)), *(copied if origin != NO_ORIGIN else ()), *own]

    def _turns(self, number: int, lengths: Ints, blocks: list[int]) -> Iterator[Turn]:
        wanted, count = self._wanted, lengths.size
        outputs = np.maximum(1, np.rint(self._outputs(number, count)))
        thinks = _lognormal(self._uniforms(number, 2, count), wanted.think_mean_s, THINK_SIGMA)
        sent_s, held = float(self._arrivals_s[number]), 0
        for place in range(count):
            length, output = int(lengths[place]), int(outputs[place])
            think_s = float(round(thinks[place], 3)) if place else None
            sent_s += think_s or 0.0
            yield Turn(
                agent=MAIN,
                turn=place,
                arrival_s=sent_s,
                think_s=think_s,
                input_tokens=length,
                output_tokens=output,
                hashes=tuple(blocks[: length // wanted.block_tokens]),
                after=(place - 1,) if place else (),
            )
            sent_s += (length - held) / wanted.prefill_tokens_per_s + output / wanted.decode_tokens_per_s
            held = length

    def _outputs(self, number: int, count: int) -> Floats:
        return _lognormal(self._uniforms(number, 1, count), self._mean_output, OUTPUT_SIGMA)

    def _uniforms(self, number: int, stream: int, count: int) -> Floats:
        """In (0, 1), of a session."""
        counter = np.array([0, number, stream, 0], dtype=np.uint64)
        raw = np.random.Philox(key=np.array([self._seed, _SESSION], dtype=np.uint64), counter=counter).random_raw(count)
        return np.asarray(((raw >> np.uint64(11)) + 0.5) * 2.0**-53)


def _lognormal(uniforms: Floats, mean: float, sigma: float) -> Floats:
    return np.asarray(mean * np.exp(sigma * special.ndtri(uniforms) - sigma**2 / 2))
