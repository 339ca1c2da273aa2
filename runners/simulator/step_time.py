"""How long one step of an engine takes, as a function of the work in it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from hashlib import sha256
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np

from results.records.simulation_spec import StepTime

DRAWN_AT_ONCE = 1024
FORGET_AT = 1024
"""Steps taken, after which a noise drops what it holds of them."""


class StepWork(NamedTuple):
    """The work of one step, as StepTime names it."""

    prefill_tokens: int
    prefill_context: float
    decode_sequences: int
    decode_context: int


def predict_step_s(step: StepTime, work: StepWork) -> float:
    """How long a step with this work takes."""
    return (
        step.base_s
        + step.prefill_token_s * work.prefill_tokens
        + step.prefill_context_s * work.prefill_context
        + step.decode_sequence_s * work.decode_sequences
        + step.decode_context_s * work.decode_context
    )


def predict_decode_s(step: StepTime, steps: int, sequences: int, context: int) -> float:
    """`steps` steps in a row in which the same sequences decode; `context`: KV tokens that the first one reads."""
    grown = sequences * steps * (steps - 1) / 2
    return steps * (step.base_s + step.decode_sequence_s * sequences) + step.decode_context_s * (
        context * steps + grown
    )


def scale_step(step: StepTime, factor: float) -> StepTime:
    """Every step takes `factor` times as long."""
    return StepTime(*(getattr(step, name) * factor for name in step.__struct_fields__))


class Noise(Protocol):
    """By which factor steps take longer than the model says.

    Each step of an engine has a factor of its own, by its number. So an arrival that cuts steps taken at once changes
    nothing of those before it, and no factor is lost.
    """

    def find_factor(self, steps: int) -> float:
        """The mean over the next `steps` steps, which remain the next ones."""

    def pass_steps(self, steps: int) -> None:
        """These have been taken."""


class StepNoise:
    """Factors drawn from a log-normal distribution with the mean 1, a pure function of the seed."""

    def __init__(self, sigma: float, seed: str) -> None:
        """`sigma`: standard deviation of the logarithm of one step's time; 0 = none."""
        self._sigma = sigma
        self._random = np.random.Generator(np.random.PCG64(int.from_bytes(sha256(seed.encode()).digest())))
        self._sums = [0.0]
        """Sums of all factors drawn before each step that is still needed, and maybe before some earlier ones."""
        self._next = 0
        """Index of the next step's."""

    def find_factor(self, steps: int) -> float:
        if not self._sigma:
            return 1.0
        end = self._next + steps
        self._draw_sums(end)
        return (self._sums[end] - self._sums[self._next]) / steps

    def pass_steps(self, steps: int) -> None:
        if not self._sigma:
            return
        self._next += steps
        self._draw_sums(self._next)
        if self._next >= FORGET_AT:
            del self._sums[: self._next]
            self._next = 0

    def _draw_sums(self, end: int) -> None:
        """Draw factors until `_sums` has this index, always as many at once: no sum depends on when it is asked for."""
        while end >= len(self._sums):
            factors = np.exp(self._random.normal(-(self._sigma**2) / 2, self._sigma, DRAWN_AT_ONCE))
            factors[0] += self._sums[-1]
            self._sums += factors.cumsum().tolist()


STEADY = StepNoise(0.0, "")


def draw_residuals(cells: Sequence[Sequence[float]], seed: str) -> ResidualNoise:
    """The residuals of one of these cells, each as likely.

    An engine that went through those of all cells would meet more states of the host than a cell did.
    """
    return ResidualNoise(random.Random(f"{seed} cell").choice(cells), seed)


class ResidualNoise:
    """What real steps took over what the model gives them, one after the other and round again.

    Their order holds what a host does for seconds on end; draws that do not depend on each other would average it out
    over the steps of an answer.
    """

    def __init__(self, residuals: Sequence[float], seed: str) -> None:
        """`residuals`: at least one; `seed` says where it begins."""
        self._sums = [0.0, *accumulate(residuals)]
        self._count = len(residuals)
        self._next = random.Random(seed).randrange(self._count)

    def find_factor(self, steps: int) -> float:
        rounds, end = divmod(self._next + steps, self._count)
        return (rounds * self._sums[-1] + self._sums[end] - self._sums[self._next]) / steps

    def pass_steps(self, steps: int) -> None:
        self._next = (self._next + steps) % self._count


class SharedCores:
    """The cores that several engines compute on: a step is slower for each other one under way when it begins.

    A step that has begun is not slowed by one that begins later; over many steps both sides see each other.
    """

    def __init__(self, share: float) -> None:
        """`share`: by how much one other engine slows a step; 0 = each engine has cores of its own."""
        self.share = share
        self._computing = 0

    def begin_step(self) -> float:
        """The factor by which this step takes longer."""
        factor = 1.0 + self.share * self._computing
        self._computing += 1
        return factor

    def end_step(self) -> None:
        self._computing -= 1


def prefill_context(computed: int, tokens: int) -> float:
    """The tokens that `tokens` prompt tokens attend to, summed, the first of them after `computed` others."""
    return tokens * computed + tokens * (tokens + 1) / 2
