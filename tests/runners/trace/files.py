"""Small trace files of every format, made here, that keep all the rules of theirs."""

from __future__ import annotations

import io
import json
import random
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from results.records.trace_lines import MAIN, Turn
from runners.trace.formats.tracon import write_trace
from runners.trace.session import Session, Trace, TraceFacts, find_session_fault

Row = dict[str, Any]


def mooncake_rows(count: int = 24, seed: int = 1) -> list[Row]:
    """Requests that each continue an earlier prompt by some blocks, or begin a new one; new ids as they come."""
    draw = random.Random(seed)
    rows: list[Row] = []
    prompts: list[list[int]] = [[]]
    new, now_ms = 0, 3000
    for _ in range(count):
        base = draw.choice(prompts)
        hashes = base[: draw.randint(0, len(base))]
        blocks = draw.randint(1, 4) if rows else 3
        hashes = hashes + list(range(new, new + blocks))
        new += blocks
        prompts.append(hashes[:-1])
        rows.append(
            {
                "timestamp": now_ms,
                "input_length": 512 * (len(hashes) - 1) + draw.randint(1, 512),
                "output_length": draw.randint(1, 90),
                "hash_ids": hashes,
            }
        )
        now_ms += draw.randint(0, 3000)
    return rows


def bailian_rows(chats: int = 8, seed: int = 1) -> list[Row]:
    """Conversations of two to four turns; each prompt goes on from the one before.

    One request has two follow-ups, and one is a follow-up of a request that is not in the file.
    """
    draw = random.Random(seed)
    rows: list[Row] = []
    for chat in range(chats):
        now_s, parent, hashes = draw.uniform(0, 50), -1, [5000]
        for turn in range(1, draw.randint(2, 4) + 1):
            number = 100 * chat + turn
            hashes = hashes + [10_000 + 40 * number + block for block in range(draw.randint(1, 3))]
            rows.append(_bailian(number, parent, now_s, hashes, turn, draw))
            parent, now_s = number, now_s + draw.uniform(1, 9)
        if chat == 2:
            rows.append(_bailian(100 * chat + 50, 100 * chat + 1, now_s, [*hashes[:2], 77_000], 2, draw))
    rows.append(_bailian(9999, 9998, 60.5, [88_000], 7, draw))
    return sorted(rows, key=lambda row: float(row["timestamp"]))


def _bailian(chat: int, parent: int, timestamp: float, hashes: Sequence[int], turn: int, draw: random.Random) -> Row:
    return {
        "chat_id": chat,
        "parent_chat_id": parent,
        "timestamp": round(timestamp, 3),
        "input_length": 16 * (len(hashes) - 1) + draw.randint(1, 16),
        "output_length": draw.randint(1, 40),
        "type": "text",
        "turn": turn,
        "hash_ids": list(hashes),
    }


def agentic_session(name: str = "trace_1", seed: int = 1) -> Row:
    """Three own requests, two sub-agents between the first and the second, one in the background after the second."""
    draw = random.Random(seed)
    ids = iter(range(1, 10_000))
    base = [next(ids) for _ in range(6)]

    def request(t: float, hashes: list[int], kind: str = "n", **more: Any) -> Row:
        return {
            "t": t,
            "type": kind,
            "model": "some-model",
            "in": 64 * len(hashes) + draw.randint(0, 63),
            "out": draw.randint(0, 200),
            "hash_ids": hashes,
            "input_types": ["text"],
            "output_types": ["text", "tool_use"],
            "stop": "tool_use",
            **more,
        }

    def grown(hashes: list[int], blocks: int) -> list[int]:
        return hashes + [next(ids) for _ in range(blocks)]

    second = grown(base, 3)
    third = grown(second, 2)
    agents = [[next(ids) for _ in range(2)]]
    agents.append([agents[0][0], next(ids)])
    requests = [
        request(0.0, base, api_time=5.0, think_time=0.0),
        _sub_agent(
            "agent_1",
            36.5,
            31_000,
            [request(0.0, agents[0], api_time=3.0), request(9.0, grown(agents[0], 1), think_time=6.0)],
        ),
        _sub_agent("agent_2", 46.0, 40_500, [request(0.0, agents[1], kind="s"), request(30.0, grown(agents[1], 4))]),
        request(50.0, second, kind="s", api_time=8.0, ttft=1.5, think_time=45.0),
        _sub_agent("agent_3", 58.4, None, [request(0.0, [next(ids)], api_time=2.0), request(40.0, [next(ids)])]),
        request(70.0, third, think_time=12.0),
    ]
    return recorded(name, requests)


def _sub_agent(agent: str, t: float, duration_ms: int | None, requests: list[Row]) -> Row:
    return {
        "t": t,
        "type": "subagent",
        "agent_id": agent,
        "subagent_type": "Explore",
        "duration_ms": duration_ms,
        "total_tokens": None,
        "tool_use_count": None,
        "status": "async_launched" if duration_ms is None else "completed",
        "requests": requests,
        "models": ["some-model"],
        "tool_tokens": 10,
        "system_tokens": 10,
    }


def recorded(name: str, requests: list[Row]) -> Row:
    """A session's file, with the sums it states of itself."""
    own = [one for one in requests if one["type"] != "subagent"]
    agents = [one for one in requests if one["type"] == "subagent"]
    theirs = [one for agent in agents for one in agent["requests"]]

    def tokens(some: list[Row]) -> Row:
        return {"input": sum(one["in"] for one in some), "output": sum(one["out"] for one in some)}

    return {
        "id": name,
        "models": ["some-model"],
        "block_size": 64,
        "hash_id_scope": "local",
        "tool_tokens": 100,
        "system_tokens": 50,
        "requests": requests,
        "totals": {
            "parent_tokens": tokens(own),
            "subagent_tokens": tokens(theirs),
            "combined_tokens": tokens(own + theirs),
            "subagent_count": len(agents),
        },
    }


FACTS = TraceFacts(source="made.jsonl", block_tokens=16, tail_rule="floor", hash_scope="session")


def make_turn(
    agent: str,
    number: int,
    arrival_s: float,
    think_s: float | None,
    input_tokens: int,
    output_tokens: int,
    hashes: tuple[int, ...],
    after: tuple[int, ...] = (),
) -> Turn:
    return Turn(
        arrival_s=arrival_s,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        hashes=hashes,
        agent=agent,
        turn=number,
        think_s=think_s,
        after=after,
    )


def sessions(count: int = 3) -> tuple[Session, ...]:
    """Sessions of three own turns and a sub-agent's one, a second apart."""
    return tuple(_session(number) for number in range(count))


def _session(number: int) -> Session:
    begin_s = float(number)
    return Session(
        f"session-{number}",
        (
            make_turn(MAIN, 0, begin_s, None, 50, 7, (1, 2, 3)),
            make_turn("helper", 0, begin_s + 1.5, 0.25, 33, 4, (9, 10), after=(0,)),
            make_turn(MAIN, 1, begin_s + 2.5, 1.0, 70, 5, (1, 2, 3, 4), after=(0, 1)),
            make_turn(MAIN, 2, begin_s + 4.0, 0.5, 90, 6, (1, 2, 3, 4, 5), after=(2,)),
        ),
    )


def tar_of(*members: tuple[str, bytes]) -> bytes:
    """An archive of files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name, content in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def assert_sound(trace: Trace) -> None:
    """The rules of the internal form."""
    arrivals = [session.arrival_s for session in trace.sessions]
    assert arrivals[0] == 0
    assert arrivals == sorted(arrivals)
    assert not any(find_session_fault(trace.facts, session) for session in trace.sessions)


def lines(rows: Sequence[Row]) -> bytes:
    """JSON lines."""
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def write_all(folder: Path) -> dict[str, Path]:
    """One file of each format, by its name."""
    files = {name: folder / f"{name}.jsonl" for name in ("mooncake", "bailian", "agentic", "tracon")}
    files["mooncake"].write_bytes(lines(mooncake_rows()))
    files["bailian"].write_bytes(lines(bailian_rows()))
    files["agentic"].write_bytes(lines([agentic_session(f"trace_{number}", number) for number in range(3)]))
    write_trace(files["tracon"], FACTS, sessions())
    return files
