"""Computes the bounds of a prefix cache and the split of the reuse from counted tokens. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from results.traces.cross_session_reuse import CrossReuse
from results.traces.description import Reuse

NO_SESSIONS = "the source has no sessions"
NO_HASHES = "the source has no block hashes"
LOCAL_HASHES = "hashes are local to a session: reuse between sessions is unknown"

_SPLIT = ("intra_session_share", "cross_session_share", "shared_prefix_share")
_OF_SPLIT = tuple(f"reuse.{name}" for name in _SPLIT)


@dataclass(frozen=True, slots=True)
class TokenCounts:
    input_tokens: int
    intra_tokens: int
    """Input tokens whose whole prefix is in an earlier request of the same session."""
    across: CrossReuse | None
    """None: the source's hashes are local to a session."""
    has_sessions: bool
    has_hashes: bool
    local_blocks: int
    """Sum over the sessions of the distinct blocks of each."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """See `TraceDescription`."""

    apc_bound_any: float | None
    apc_bound_intra: float | None
    reuse: Reuse
    reasons: Mapping[str, str]


def bound_reuse(counted: TokenCounts, shared_from: int) -> Bounds:
    """The bounds with the reasons for unknown ones. `shared_from`: see `Reuse`."""
    if not counted.has_hashes or counted.input_tokens == 0:
        unknown = ("apc_bound_any", "apc_bound_intra", "reuse.reused_tokens", "reuse.distinct_blocks", *_OF_SPLIT)
        return Bounds(None, None, Reuse(shared_from=shared_from), dict.fromkeys(unknown, NO_HASHES))
    if counted.across is None:
        return _bound_within_sessions(counted, shared_from)
    return _bound_over_all(counted, counted.across, shared_from)


def _bound_within_sessions(counted: TokenCounts, shared_from: int) -> Bounds:
    bound = counted.intra_tokens / counted.input_tokens
    reuse = Reuse(
        reused_tokens=float(counted.intra_tokens),
        shared_from=shared_from,
        distinct_blocks=float(counted.local_blocks),
    )
    reasons = dict.fromkeys(_OF_SPLIT, LOCAL_HASHES)
    reasons["apc_bound_any"] = f"{LOCAL_HASHES}, so this is the bound within sessions"
    return Bounds(bound, bound, reuse, reasons)


def _bound_over_all(counted: TokenCounts, across: CrossReuse, shared_from: int) -> Bounds:
    reused = counted.intra_tokens + across.first.tokens
    parts = {  # a session's reuse within itself includes blocks that another session used first
        "intra_session_share": reused - across.cross.tokens - across.shared.tokens,
        "cross_session_share": across.cross.tokens,
        "shared_prefix_share": across.shared.tokens,
    }
    shares = {name: tokens / reused if reused else None for name, tokens in parts.items()}
    reasons: dict[str, str] = {}
    if not counted.has_sessions:
        shares = dict.fromkeys(shares)
        reasons = dict.fromkeys(("apc_bound_intra", *_OF_SPLIT), NO_SESSIONS)
    elif not reused:
        reasons = dict.fromkeys(_OF_SPLIT, "nothing is reused")
    reuse = Reuse(
        reused_tokens=reused,
        **shares,
        shared_from=shared_from,
        distinct_blocks=across.blocks,
        followed_one_in=across.one_in,
        standard_error=_estimate_standard_errors(counted, across, reused, shares),
    )
    intra = counted.intra_tokens / counted.input_tokens if counted.has_sessions else None
    return Bounds(reused / counted.input_tokens, intra, reuse, reasons)


def _estimate_standard_errors(
    counted: TokenCounts, across: CrossReuse, reused: float, shares: Mapping[str, float | None]
) -> Mapping[str, float]:
    """Standard errors of the bound and the shares, to first order, with independent numerator and denominator."""
    if across.one_in == 1:
        return {}
    errors = {"apc_bound_any": across.first.error / counted.input_tokens}
    both = math.hypot(across.cross.error, across.shared.error)
    for name, error in zip(_SPLIT, (both, across.cross.error, across.shared.error), strict=True):
        share = shares[name]
        if share is not None:
            errors[name] = math.hypot(error, share * across.first.error) / reused
    return errors
