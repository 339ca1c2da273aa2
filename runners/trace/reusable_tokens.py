"""The tokens of each prompt that an engine can reuse, at the engine's own block size.

Two prompts share the tokens of their common leading hashes. Tokens without a hash differ in every prompt, as they do in
a replay.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from results.traces.prefix_keys import Keys, known_depth, prefix_keys
from runners.trace.session import Trace


def count_reusable_tokens(trace: Trace, block_tokens: int) -> list[tuple[int, int]]:
    """Per turn the tokens of its longest prefix in an earlier prompt: (of any session, of its own session).

    Sorted by (session, turn) of the trace; "earlier" is by recorded arrival, then by that order. Counts like vLLM with
    an unlimited cache: whole blocks of `block_tokens` only, and the last token of a prompt is always computed, so at
    most input_tokens - 1, rounded down to blocks. Both numbers are equal where hashes are local to a session. Raises
    ValueError where `block_tokens` is not positive.
    """
    if block_tokens < 1:
        raise ValueError(f"a block cannot have {block_tokens} tokens")
    turns = [
        (turn.arrival_s, number, index)
        for number, session in enumerate(trace.sessions)
        for index, turn in enumerate(session.turns)
    ]
    everywhere, own = _KnownPrompts(), [_KnownPrompts() for _ in trace.sessions]
    reusable: dict[tuple[int, int], tuple[int, int]] = {}
    for _, number, index in sorted(turns):
        turn = trace.sessions[number].turns[index]
        prompt = _Prompt(prefix_keys(turn.hashes), turn.input_tokens, trace.facts.block_tokens)
        intra = own[number].add(prompt)
        shared = intra if trace.facts.hash_scope == "session" else everywhere.add(prompt)
        most = prompt.input_tokens - 1
        reusable[number, index] = (
            _whole_blocks(min(shared, most), block_tokens),
            _whole_blocks(min(intra, most), block_tokens),
        )
    return [reusable[number, index] for _, number, index in turns]


def _whole_blocks(tokens: int, block_tokens: int) -> int:
    return tokens // block_tokens * block_tokens


@dataclass(frozen=True, slots=True)
class _Prompt:
    keys: Keys
    input_tokens: int
    block_tokens: int

    def count_covered(self, block: int) -> int:
        """Tokens of the prompt in one of its hashed blocks: fewer than `block_tokens` in a partial last block."""
        return min(self.block_tokens, self.input_tokens - block * self.block_tokens)


@dataclass(slots=True)
class _KnownPrompts:
    """Block key to the largest number of tokens that a prompt so far has in that block."""

    tokens_of: dict[int, int] = field(default_factory=dict)

    def add(self, prompt: _Prompt) -> int:
        """Add a prompt; returns the number of its leading tokens that were known before."""
        keys, tokens_of = prompt.keys, self.tokens_of
        depth = known_depth(keys, tokens_of)
        shared = 0
        if depth:
            last = int(keys[depth - 1])
            covered = prompt.count_covered(depth - 1)
            shared = (depth - 1) * prompt.block_tokens + min(covered, tokens_of[last])
            tokens_of[last] = max(covered, tokens_of[last])
        if depth < keys.size:
            tokens_of.update(dict.fromkeys(keys[depth:].tolist(), prompt.block_tokens))
            tokens_of[int(keys[-1])] = prompt.count_covered(keys.size - 1)
        return shared
