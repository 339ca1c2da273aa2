"""Whether a run was large enough for the claims of specs/ear about hot sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from results.measures.turns import Turns
from results.records.run_folder import RunFacts
from results.routing.read import LoadedCell
from results.statistics.estimates import Ranks, Samples

TOO_SMALL = "not testable at this scale"
ONE_TURN = "not testable on this trace"
NO_SECOND_TURN = "every session of the trace has one turn: none can be kept or moved"
MIN_INSTANCES = 8
MIN_HOT_PER_INSTANCE = 4
MIN_TURNS = 10
STEADY_PRESET = "preset `steady`"
LIGHTER = "a larger `time_scale`, as of preset `fleet-light`"
"""Remedy for simulated engines: the rates of `steady` are more than a fleet of models serves under every policy."""
SUSTAINED = "a rate that its policies sustain without a limit on sessions in flight"


@dataclass(frozen=True, slots=True)
class Lack:
    """Why a run does not suffice for a claim; false where it does."""

    reason: str = ""
    label: str = TOO_SMALL
    """Label of the judgement that it leaves open."""
    needs: str = ""
    """What a run must have to judge it."""
    by_plan: bool = False
    """The plan or its trace rules the claim out, whatever is measured."""

    def __bool__(self) -> bool:
        return bool(self.reason)


ENOUGH = Lack()


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a run under one load."""

    instances: int
    shares_cores: bool
    """As in RunFacts."""
    hot_sessions: int
    """The fewest sessions that have half of the input tokens."""
    hot_turns: float
    """The median number of their turns."""
    max_inflight_sessions: int
    """0 = no limit."""
    no_loop: Mapping[str, str] = field(default_factory=dict)
    """By label: why no loop of dispatch coupling is stated; empty where one may be."""
    follows_sessions: bool = True
    """Some session has a second turn."""
    simulated: bool = False

    @property
    def lighter(self) -> str:
        """Where a user finds a rate that more policies sustain."""
        return LIGHTER if self.simulated else STEADY_PRESET

    @property
    def sustained(self) -> str:
        """What a run must have whose policies have a steady state."""
        return f"{SUSTAINED} ({self.lighter})"

    @property
    def lacks_instances(self) -> Lack:
        """Whether the instances suffice for a claim about eight GPUs."""
        if not self.shares_cores and self.instances >= MIN_INSTANCES:
            return ENOUGH
        shared = " that share a host's cores" if self.shares_cores else ""
        return Lack(
            f"{self.instances} instances{shared} (it takes {MIN_INSTANCES} or more with compute of their own)",
            needs=f"{MIN_INSTANCES} or more instances with compute of their own",
            by_plan=True,
        )

    @property
    def lacks_sessions(self) -> Lack:
        """Whether the trace suffices for a claim about keeping or moving sessions."""
        if self.follows_sessions:
            return ENOUGH
        return Lack(NO_SECOND_TURN, ONE_TURN, "a trace with sessions of several turns", by_plan=True)

    @property
    def lacks(self) -> Lack:
        """Whether the run suffices for a claim about hot sessions, with what it takes."""
        parts = [self.lacks_instances]
        if self.hot_sessions < MIN_HOT_PER_INSTANCE * self.instances:
            needed = f"{MIN_HOT_PER_INSTANCE} or more per instance"
            why = f"{self.hot_sessions} sessions have half of the input ({needed})"
            needs = f"half of the input in {MIN_HOT_PER_INSTANCE} or more sessions per instance"
            parts.append(Lack(why, needs=needs, by_plan=True))
        if self.lacks_sessions:
            parts.append(self.lacks_sessions)
        elif self.hot_turns < MIN_TURNS:
            why = f"these have {self.hot_turns:g} turns each ({MIN_TURNS} or more)"
            parts.append(Lack(why, needs=f"{MIN_TURNS} or more turns in each of these", by_plan=True))
        if self.max_inflight_sessions > 0:
            why = f"at most {self.max_inflight_sessions} sessions are in flight (no limit)"
            parts.append(Lack(why, needs="no limit on sessions in flight", by_plan=True))
        return _join_lacks(parts)

    def lacks_loop(self, *labels: str) -> Lack:
        """Whether the run suffices for a claim about how these policies load the whole system.

        Where arrivals wait for a limit, or the system is in no steady state, such a claim compares queues that the
        replay made.
        """
        parts = self._name_no_loop(labels)
        if parts:
            who = "both" if len(labels) == 2 else "all of these"
            remedy = f"a rate that {who} sustain without a limit on sessions in flight shows it ({self.lighter})"
            parts.append(Lack(remedy))
        return _join_lacks([self.lacks_instances, *parts])

    def lacks_steady_state(self, *labels: str) -> Lack:
        """Whether times of these policies are free of the length of the replay.

        Under a limit on sessions in flight they are: it bounds every queue.
        """
        if self.max_inflight_sessions > 0:
            return ENOUGH
        return _join_lacks(self._name_no_loop(labels))

    def _name_no_loop(self, labels: Sequence[str]) -> list[Lack]:
        whys = {label: self.no_loop.get(label) for label in labels}
        return [Lack(f"{label}: {why}", needs=self.sustained) for label, why in whys.items() if why]


def _join_lacks(parts: Sequence[Lack]) -> Lack:
    """All reasons and needs, under the label of the first."""
    lacking = [one for one in parts if one]
    if not lacking:
        return ENOUGH
    reasons = "; ".join(one.reason for one in lacking)
    needs = ", ".join(dict.fromkeys(one.needs for one in lacking if one.needs))
    return Lack(reasons, lacking[0].label, needs, by_plan=any(one.by_plan for one in lacking))


def sort_sessions(turns: Turns) -> tuple[Samples, Ranks]:
    """Input tokens and turns of each session, those with the most input first."""
    _, of_session, counts = np.unique(turns.session, return_inverse=True, return_counts=True)
    tokens = np.asarray(np.bincount(of_session, weights=turns.input_tokens), dtype=np.float64)
    largest_first = np.argsort(-tokens, kind="stable")
    return tokens[largest_first], counts[largest_first]


def measure_scale(cells: Sequence[LoadedCell], facts: RunFacts, no_loop: Mapping[str, str]) -> Scale:
    """`cells`: they replay one trace on as many instances. `no_loop`: as in Scale."""
    turns = next((cell.turns for cell in cells if cell.turns is not None), None)
    empty = Scale(
        instances=max((len(cell.record.engines) for cell in cells), default=0),
        shares_cores=facts.shares_cores,
        hot_sessions=0,
        hot_turns=0.0,
        max_inflight_sessions=max(
            (int(cell.record.replay.get("max_inflight_sessions") or 0) for cell in cells), default=0
        ),
        no_loop=no_loop,
        simulated=bool(facts.simulated),
    )
    if turns is None or not turns.index.size:
        return empty
    tokens, counts = sort_sessions(turns)
    hot = 1 + int(np.searchsorted(np.cumsum(tokens), tokens.sum() / 2))
    return replace(
        empty, hot_sessions=hot, hot_turns=float(np.median(counts[:hot])), follows_sessions=bool(counts.max() > 1)
    )
