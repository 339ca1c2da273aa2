"""Explain a recorded pick in words: the chosen instance, the reason, and why not each of the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from results.records.decisions import Candidate, Decision, DecisionRecord, KvTransfer, RoutedOutcome
from runners.router.policies.reasons import REASONS, SCORE_KEYS

MIGRATIONS: Mapping[str, str] = {
    "transferred": "the session's KV was moved, and the session with it",
    "recomputed": "no KV was moved: the target computed what it did not hold",
    "unneeded": "no KV had to be moved: the target lacked next to nothing of what the source held",
    "failed": "the migration failed: the session stays bound as it was",
}


def explain_picks(records: Sequence[DecisionRecord]) -> list[str]:
    """All picks of one request, in order, as lines of text."""
    lines: list[str] = []
    for index, record in enumerate(records):
        if index:
            lines += ["", "It was picked again:"]
        lines += _explain_pick(record)
    return lines


def why_not(candidate: Candidate, decision: Decision) -> str:
    """Why the request did not go to `candidate`, in words."""
    if candidate.ruled_out:
        return f"ruled out: {candidate.ruled_out}"
    if not decision.instance:
        return "nothing was picked"
    rival = _name_rival(candidate, decision)
    chosen = next((other for other in decision.candidates if other.instance == rival), None)
    if chosen is None or not candidate.score or not chosen.score:
        return "it was not weighed"
    pairs = zip(candidate.score, chosen.score, strict=False)
    index = next((number for number, (mine, theirs) in enumerate(pairs) if mine != theirs), None)
    if index is None:
        return "equal in everything, and later by name"
    key = decision.keys[index] if index < len(decision.keys) else f"score {index + 1}"
    words = SCORE_KEYS.get(key, key.replace("_", " "))
    against = f"{words} {candidate.score[index]:g} against {chosen.score[index]:g}"
    if candidate.score < chosen.score:
        return f"its score is better ({against}), but the score did not decide"
    return f"equal before it, then {against}" if index else against


def _name_rival(candidate: Candidate, decision: Decision) -> str:
    """The picked instance of the candidate's pool."""
    return decision.prefill if decision.prefill and candidate.terms.get("prefills") else decision.instance


def _explain_pick(record: DecisionRecord) -> Iterator[str]:
    request, decision = record.request, record.decision
    who = f"session {request.session}, turn {request.turn}" if request.session else "no session"
    where = f"went to {decision.instance}" if decision.instance else "went nowhere"
    prefilled = f", its prompt computed by {decision.prefill}" if decision.prefill else ""
    yield (
        f"Request {request.request} ({who}; {request.input_tokens} prompt tokens, up to {request.max_tokens} output "
        f"tokens) {where}{prefilled}."
    )
    grounds = REASONS.get(decision.reason, "a reason of its own")
    yield f"Policy {decision.policy}, reason `{decision.reason}`: {grounds}."
    yield from _explain_session(record)
    for gate in decision.gates:
        yield f"Gate {gate.name} {'passed' if gate.passed else 'failed'}: {gate.text}."
    if decision.keys:
        keys = ", then ".join(SCORE_KEYS.get(key, key) for key in decision.keys)
        yield f"Lowest score wins, compared from left to right: {keys}."
    for candidate in decision.candidates:
        yield _explain_candidate(candidate, decision)
    if decision.tie_break:
        yield f"Tie: {decision.tie_break}."
    yield f"Pick {record.seq}, decided in {record.decide_us:.0f} us."
    if record.simulated is True:
        yield "SIMULATED, nothing was measured: the instances are a model."
    if record.outcome is not None and record.outcome.transfer is not None:
        yield from _explain_transfer(record.outcome.transfer)
    yield _explain_outcome(record.outcome, record)


def _explain_session(record: DecisionRecord) -> Iterator[str]:
    request, decision = record.request, record.decision
    if request.owner:
        since = request.since_migration_s
        migrated = "" if since is None else f"; it migrated {since:.1f} s before"
        yield f"The session's owner was {request.owner}{migrated}."
    if decision.migrate_from:
        yield f"The session migrates: its KV was to be moved from {decision.migrate_from} first."
    if request.tried:
        yield f"Tried before: {', '.join(request.tried)}."


def _explain_transfer(moved: KvTransfer) -> Iterator[str]:
    what = f"Transfer {moved.transfer or '(no id)'} ({moved.purpose}, {moved.transport or 'no transport chosen'})"
    size = f"KV of {moved.prefix_tokens} tokens" if moved.prefix_tokens else "KV"
    kv = f"{size} from {moved.source} to {moved.target}"
    if moved.status in ("refused", "unneeded"):
        not_tried = "was not tried" if moved.status == "refused" else "was not needed"
        yield f"{what}: {kv} {not_tried}: {moved.reason}."
        return
    tries = f" after {moved.attempts} tries" if moved.attempts > 1 else ""
    failed = f"failed{tries}: {moved.reason}"
    yield f"{what}: {kv} {'was moved' + tries if moved.status == 'transferred' else failed}{_describe_timing(moved)}."
    parts = (
        ("from the transfer", moved.external_tokens),
        ("in its own cache", moved.local_tokens),
        ("computed", moved.computed_tokens),
    )
    counted = [f"{tokens} {how}" for how, tokens in parts if tokens is not None]
    if counted:
        size = "" if moved.bytes is None else f"; {moved.bytes} bytes ({moved.bytes_from})"
        yield f"The target counted {', '.join(counted)}{size}."
    if moved.counted_reason:
        yield f"Not all of it could be counted: {moved.counted_reason}."


def _describe_timing(moved: KvTransfer) -> str:
    if not moved.t_done_ns:
        return ""
    requests = (
        ("prefill request", moved.t_source_sent_ns, moved.t_source_done_ns),
        ("decode request", moved.t_target_sent_ns, moved.t_done_ns),
    )
    shown = [f"{name} {(end - begin) / 1e9:.3f} s" for name, begin, end in requests if begin and end]
    whole = f" in {(moved.t_done_ns - moved.t_begin_ns) / 1e9:.3f} s"
    return f"{whole} ({', '.join(shown)})" if shown else whole


def _explain_candidate(candidate: Candidate, decision: Decision) -> str:
    terms = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in candidate.terms.items())
    score = f" score ({', '.join(f'{value:g}' for value in candidate.score)})" if candidate.score else ""
    shown = f"{score} [{terms}]" if terms else score
    if candidate.instance == decision.instance:
        return f"  {candidate.instance}: picked;{shown}"
    if candidate.instance == decision.prefill:
        return f"  {candidate.instance}: picked for the prompt;{shown}"
    return f"  {candidate.instance}: not picked: {why_not(candidate, decision)};{shown}".rstrip(";")


def _explain_outcome(outcome: RoutedOutcome | None, record: DecisionRecord) -> str:
    if outcome is None:
        return "Outcome: not known, the router ended first."
    parts = [outcome.status if outcome.http_status is None else f"{outcome.status} (HTTP {outcome.http_status})"]
    if outcome.first_byte_s is not None:
        parts.append(f"first byte after {outcome.first_byte_s:.3f} s")
    if outcome.last_byte_s is not None:
        last = "last byte" if outcome.status == "ok" else "over"
        parts.append(f"{last} after {outcome.last_byte_s:.3f} s")
    expected = record.request.cached_tokens.get(record.decision.prefill or record.decision.instance, 0)
    if outcome.prompt_tokens is not None:
        had = "an unknown number" if outcome.cached_tokens is None else str(outcome.cached_tokens)
        parts.append(f"{outcome.prompt_tokens} prompt tokens, {had} of them cached ({expected} expected by the index)")
    if outcome.migration:
        parts.append(MIGRATIONS.get(outcome.migration, f"migration {outcome.migration}"))
    if outcome.error:
        parts.append(outcome.error)
    return f"Outcome: {', '.join(parts)}."
