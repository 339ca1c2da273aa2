"""How long one step of an engine takes, as a function of the work in it."""

from __future__ import annotations

import math

import msgspec


class StepTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Seconds of a step, linear in its work.

    step_s = base_s + prefill_token_s * P + prefill_context_s * C + decode_sequence_s * D + decode_context_s * R

    P: prompt tokens computed in the step. C: the sum, over those tokens, of the tokens each attends to. D: sequences
    that decode one token. R: KV tokens that these read.
    """

    base_s: float
    prefill_token_s: float
    decode_sequence_s: float
    prefill_context_s: float = 0.0
    decode_context_s: float = 0.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}; it must be a number of seconds, 0 or more")
        if self.base_s + self.decode_sequence_s <= 0 or self.base_s + self.prefill_token_s <= 0:
            raise ValueError("a step takes no time: give base_s, or prefill_token_s and decode_sequence_s")

    def step_s(self, prefill_tokens: int, prefill_context: float, decode_sequences: int, decode_context: int) -> float:
        """One step; the arguments are P, C, D and R."""
        return (
            self.base_s
            + self.prefill_token_s * prefill_tokens
            + self.prefill_context_s * prefill_context
            + self.decode_sequence_s * decode_sequences
            + self.decode_context_s * decode_context
        )

    def decode_s(self, steps: int, sequences: int, context: int) -> float:
        """`steps` steps in a row in which the same sequences decode; `context`: KV tokens that the first one reads."""
        grown = sequences * steps * (steps - 1) / 2
        return steps * (self.base_s + self.decode_sequence_s * sequences) + self.decode_context_s * (
            context * steps + grown
        )


def prefill_context(computed: int, tokens: int) -> float:
    """The tokens that `tokens` prompt tokens attend to, summed, the first of them after `computed` others."""
    return tokens * computed + tokens * (tokens + 1) / 2
