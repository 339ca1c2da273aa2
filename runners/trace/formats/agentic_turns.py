"""When the requests of a recorded agentic session were sent, and which of them waited for which.

The session's own requests are sequential. The times of a sub-agent are inferred from 48 recorded ones, which all agree:
with a `duration_ms`, `t` is the time of its result, so it began `duration_ms` earlier, within about a second of the end
of the request that launched it. Without one (`async_launched`), `t` is its launch. The times of its requests count from
its start; where the first is already after that start, they count from the start of the session.

- A session's own request waits for the one before it, and for the last request of every sub-agent that returned since.
- A sub-agent's first request waits for the session's own request before it in the file, its others for the one before.
- No request waits for a sub-agent that was launched in the background.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from results.records.trace_lines import MAIN, Count, HashId, Positive, Turn
from runners.trace.formats.decode import Seconds

SLACK_S = 1.0
"""Tolerance: requests are recorded to the second, sub-agents to the millisecond."""
BACKGROUND = "async_launched"


class Fault(Exception):
    """A contradiction within a session; the message names the entry and the rule."""


class Request(msgspec.Struct, tag_field="type", tag="n"):
    """One request, not streamed. Times in seconds."""

    t: Seconds
    hash_ids: list[HashId]
    input: Positive = msgspec.field(name="in")
    output: Count = msgspec.field(name="out")
    api_time: Seconds | None = None
    """Duration of the answer."""
    think_time: Seconds | None = None
    """Pause since the end of the previous request."""


class StreamedRequest(Request, tag="s"):
    """A request whose answer was streamed; its turn is that of any other."""


class SubAgent(msgspec.Struct, tag_field="type", tag="subagent"):
    """A sub-agent with all its requests."""

    t: Seconds
    agent_id: str
    requests: list[Request | StreamedRequest]
    status: str = ""
    duration_ms: Seconds | None = None


Entry = Request | StreamedRequest | SubAgent


@dataclass(frozen=True, slots=True)
class Placed:
    """A request with its times on the session's clock."""

    name: str
    """Its path in the file: `requests[3].requests[0]`."""
    request: Request
    agent: str
    sent_s: float
    """Since the session's own zero."""
    think_s: float | None
    after: tuple[int, ...]
    """Indexes, in the same list, of the requests for which it waited."""


def lay_out(entries: list[Entry]) -> list[Placed]:
    """Every request in the file's order. Raises Fault."""
    layout = _Layout()
    before_s = 0.0
    for index, entry in enumerate(entries):
        name = f"requests[{index}]"
        _require_rule(entry.t >= before_s, name, f"t is {entry.t}, before the previous entry ({before_s})")
        before_s = entry.t
        if isinstance(entry, SubAgent):
            layout.place_sub_agent(name, entry)
        else:
            layout.place_own(name, entry)
    return layout.placed


def order_turns(placed: list[Placed], hashes: list[tuple[int, ...]]) -> tuple[Turn, ...]:
    """The requests as turns, sorted by their send; the first at 0."""
    order = sorted(range(len(placed)), key=lambda at: placed[at].sent_s)  # stable: a predecessor stays ahead
    index_of = {at: index for index, at in enumerate(order)}
    numbers: dict[str, int] = {}
    turns = []
    for at in order:
        one = placed[at]
        number = numbers.get(one.agent, 0)
        numbers[one.agent] = number + 1
        turns.append(
            Turn(
                agent=one.agent,
                turn=number,
                arrival_s=one.sent_s - placed[order[0]].sent_s,
                think_s=one.think_s,
                input_tokens=one.request.input,
                output_tokens=one.request.output,
                hashes=hashes[at],
                after=tuple(sorted(index_of[waited] for waited in one.after)),
            )
        )
    return tuple(turns)


class _Layout:
    def __init__(self) -> None:
        self.placed: list[Placed] = []
        self._own: int | None = None
        """The session's own latest request."""
        self._back: list[tuple[int, float]] = []
        """(last request, return time) of each sub-agent that returned since."""

    def place_own(self, name: str, request: Request) -> None:
        think_s = None if self._own is None else _measure_think_time(self.placed[self._own], request)
        if self._back:
            think_s = request.t - max(back_s for _, back_s in self._back)
        waited = (() if self._own is None else (self._own,)) + tuple(at for at, _ in self._back)
        self._back = []
        self._own = self._append_request(name, request, MAIN, request.t, think_s, waited)

    def place_sub_agent(self, name: str, agent: SubAgent) -> None:
        _require_rule(agent.agent_id != MAIN, name, "agent_id is empty")
        if not agent.requests:
            return
        begin_s, end_s = self._find_span(name, agent)
        zero_s = _find_zero_s(name, agent, begin_s)
        latest = self._own
        for index, request in enumerate(agent.requests):
            inside = f"{name}.requests[{index}]"
            sent_s = zero_s + request.t
            if index:
                ahead = agent.requests[index - 1]
                _require_rule(request.t >= ahead.t, inside, f"t is {request.t}, before the previous one ({ahead.t})")
                assert latest is not None
                think_s = _measure_think_time(self.placed[latest], request, sent_s)
            else:
                think_s = None if latest is None else _measure_since_end(self.placed[latest], sent_s)
            if end_s is not None:
                _require_rule(
                    sent_s <= end_s + SLACK_S, inside, f"it was sent at {sent_s}, but the sub-agent ended at {end_s}"
                )
            after = () if latest is None else (latest,)
            latest = self._append_request(inside, request, agent.agent_id, sent_s, think_s, after)
        if end_s is not None and latest is not None:
            self._back.append((latest, end_s))

    def _find_span(self, name: str, agent: SubAgent) -> tuple[float, float | None]:
        """(begin, return); None = it ran in the background."""
        if agent.duration_ms is None or agent.status == BACKGROUND:
            return agent.t, None
        begin_s = agent.t - agent.duration_ms / 1e3
        launched_s = 0.0 if self._own is None else self.placed[self._own].sent_s
        _require_rule(
            begin_s >= launched_s - SLACK_S,
            name,
            f"it returned at t = {agent.t} after {agent.duration_ms / 1e3} s, so it began at {begin_s:.3f}, "
            f"before its launch ({launched_s})",
        )
        return begin_s, agent.t

    def _append_request(
        self, name: str, request: Request, agent: str, sent_s: float, think_s: float | None, after: tuple[int, ...]
    ) -> int:
        sent_s = max((sent_s, *(self.placed[at].sent_s for at in after)))  # within SLACK_S
        self.placed.append(Placed(name, request, agent, sent_s, think_s, after))
        return len(self.placed) - 1


def _find_zero_s(name: str, agent: SubAgent, begin_s: float) -> float:
    """The time that is zero for a sub-agent's requests."""
    first_s = agent.requests[0].t
    if first_s <= SLACK_S:
        return begin_s
    _require_rule(
        first_s >= begin_s - SLACK_S,
        name,
        f"its first request is at t = {first_s}, which is neither relative to its own start nor, since it began at "
        f"{begin_s:.3f}, to the session's",
    )
    return 0.0


def _measure_think_time(ahead: Placed, request: Request, sent_s: float | None = None) -> float | None:
    """As recorded, else from the times around it; None where they are unknown."""
    if request.think_time is not None:
        return request.think_time
    return _measure_since_end(ahead, request.t if sent_s is None else sent_s)


def _measure_since_end(ahead: Placed, sent_s: float) -> float | None:
    if ahead.request.api_time is None:
        return None
    return max(0.0, sent_s - (ahead.sent_s + ahead.request.api_time))


def _require_rule(holds: bool, name: str, rule: str) -> None:
    if not holds:
        raise Fault(f"{name}: {rule}")
