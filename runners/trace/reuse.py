"""How much of each prompt an engine could reuse, at the engine's own block size.

What two prompts share is what the trace's hashes say: the tokens of the blocks they have in common from the start.
Tokens that no hash stands for are taken to be different in every prompt, as they are in a replay.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from results.traces.keys import Keys, known_depth, prefix_keys
from runners.trace.session import Trace, TraceFacts, Turn


def reusable(trace: Trace, block_tokens: int) -> list[tuple[int, int]]:
    """Per turn the tokens of its longest prefix that an earlier prompt had: of any session, and of its own session.

    In the order of (session, turn) of the trace; "earlier" goes by recorded arrival, then by that order. As vLLM counts
    with room for everything: whole blocks of `block_tokens` only, and at least the prompt's last token is computed, so
    a prompt that is known as a whole gives at most input_tokens - 1, rounded down to blocks. Where hashes are local to
    a session both numbers are the same. Raises ValueError where `block_tokens` is not positive.
    """
    if block_tokens < 1:
        raise ValueError(f"a block cannot have {block_tokens} tokens")
    turns = [
        (turn.arrival_s, number, place)
        for number, session in enumerate(trace.sessions)
        for place, turn in enumerate(session.turns)
    ]
    everywhere, own = _Seen(), [_Seen() for _ in trace.sessions]
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for _, number, place in sorted(turns):
        prompt = _prompt(trace.sessions[number].turns[place], trace.facts)
        intra = own[number].add(prompt)
        shared = intra if trace.facts.hash_scope == "session" else everywhere.add(prompt)
        most = prompt.input_tokens - 1
        found[number, place] = (
            _whole_blocks(min(shared, most), block_tokens),
            _whole_blocks(min(intra, most), block_tokens),
        )
    return [found[number, place] for _, number, place in turns]


def _whole_blocks(tokens: int, block_tokens: int) -> int:
    return tokens // block_tokens * block_tokens


@dataclass(frozen=True, slots=True)
class _Prompt:
    keys: Keys
    input_tokens: int
    block_tokens: int

    def covered(self, block: int) -> int:
        """Tokens of the prompt in one of its hashed blocks: fewer than a block's in a partial last one."""
        return min(self.block_tokens, self.input_tokens - block * self.block_tokens)


def _prompt(turn: Turn, facts: TraceFacts) -> _Prompt:
    return _Prompt(prefix_keys(turn.hashes), turn.input_tokens, facts.block_tokens)


@dataclass(slots=True)
class _Seen:
    """Every prompt so far: the key of each of its blocks, with the most tokens of that block that a prompt had."""

    tokens_of: dict[int, int] = field(default_factory=dict)

    def add(self, prompt: _Prompt) -> int:
        """Remember a prompt; returns how many tokens from its start were known before."""
        keys, tokens_of = prompt.keys, self.tokens_of
        depth = known_depth(keys, tokens_of)
        shared = 0
        if depth:
            last = int(keys[depth - 1])
            covered = prompt.covered(depth - 1)
            shared = (depth - 1) * prompt.block_tokens + min(covered, tokens_of[last])
            tokens_of[last] = max(covered, tokens_of[last])
        if depth < keys.size:
            tokens_of.update(dict.fromkeys(keys[depth:].tolist(), prompt.block_tokens))
            tokens_of[int(keys[-1])] = prompt.covered(keys.size - 1)
        return shared
