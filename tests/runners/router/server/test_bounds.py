"""Each row of docs/security.md, "Bounds", has the limits of the code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from results.records.router_spec import InstanceSpec, Limits, RouterSpec
from runners.router import facts, migration_feed
from runners.router.instances import fleet, internal_request, kv_events, upstream
from runners.router.server import front, held_bytes, log, proxy, server
from runners.router.sessions import responses
from runners.router.transfer import request_bodies

PAGE = Path(__file__).resolve().parents[4] / "docs" / "security.md"
LIMITS = Limits()
SPEC = RouterSpec((InstanceSpec("a", "http://127.0.0.1:1"),))


def size(count: int) -> str:
    """Bytes as the page writes them."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count % (1 << power) == 0:
            return f"{count >> power} {unit}"
    return f"{count} bytes"


BOUNDS: Mapping[str, tuple[str, ...]] = {
    "head; trailers": (size(upstream.HEAD_LIMIT_BYTES),),
    "head of an instance's response": (size(upstream.HEAD_LIMIT_BYTES),),
    "headers of one head": (f"{front.HEADER_LIMIT}",),
    "one body": (size(LIMITS.body_bytes),),
    "all bodies": (size(LIMITS.held_bytes), size(held_bytes.LARGE_HEAD_BYTES), f"{held_bytes.KEY_BYTES} bytes"),
    "requests sent ahead": (size(held_bytes.AHEAD_LIMIT_BYTES), size(held_bytes.LARGE_HEAD_BYTES)),
    "number of requests sent ahead": (f"{front.QUEUE_LIMIT}",),
    "head; body": (f"{LIMITS.head_s:g} s", f"{LIMITS.body_s:g} s"),
    "connections": (f"{server.STREAMS_LIMIT:,}",),
    "a response that its client": (size(internal_request.BODY_LIMIT_BYTES), f"{LIMITS.client_stall_s:g} s"),
    "body, or answer about a transfer": (size(facts.LONG_BYTES),),
    "prompt of a request whose KV": (
        size(request_bodies.PROMPT_LIMIT_BYTES),
        f"{request_bodies.PARTS_LIMIT:,}",
        size(facts.LONG_BYTES),
    ),
    "an instance's answer": (size(internal_request.BODY_LIMIT_BYTES), f"{internal_request.CHUNKS_LIMIT:,}"),
    "prompt tokens": (f"{facts.HASHED_TOKENS:,}",),
    "answers being passed on": (
        size(internal_request.BODY_LIMIT_BYTES),
        f"{LIMITS.held_bytes // internal_request.BODY_LIMIT_BYTES}",
    ),
    "first events": (size(proxy.PREAMBLE_LIMIT_BYTES),),
    "chunk of an instance's": (size(upstream.HELD_LIMIT_BYTES),),
    "last pieces": (f"{proxy.TAIL_PIECES}, ",),
    "KV events: one message": (
        size(kv_events.MESSAGE_LIMIT_BYTES),
        f"{kv_events.QUEUE_LIMIT:,}",
        size(kv_events.WAITING_LIMIT_BYTES),
    ),
    "KV events applied": (f"{1e3 * fleet.FOLLOW_S:g} ms",),
    "exact index": (f"{kv_events.BLOCKS_LIMIT:,} blocks", "twice"),
    "approximate index": (f"{fleet.UNKNOWN_CAPACITY_BLOCKS:,} blocks",),
    "sessions in the table": (f"{SPEC.max_sessions:,}", f"{facts.SESSION_LIMIT} characters"),
    "stored responses": (f"{responses.RESPONSES_KNOWN:,}", "200 characters"),
    "inputs of one request": (f"{facts.PROMPTS_LIMIT:,}",),
    "records that wait": (size(log.BACKLOG_LIMIT_BYTES),),
    "migration events": (f"{migration_feed.LINES_STORED:,}", f"{migration_feed.REFUSALS_STORED:,}"),
    "request id": (f"{proxy.REQUEST_ID_LIMIT} characters",),
    "control characters": ("none",),
    "JSON too deep": (),
}
"""The beginning of each row, and what it must say."""


def list_rows() -> list[str]:
    bounds = PAGE.read_text(encoding="utf-8").partition("### Bounds")[2].partition("\n## ")[0]
    return [line for line in bounds.splitlines() if line.startswith("| ")][1:]


def test_each_bound_of_the_page_is_the_codes() -> None:
    rows = list_rows()
    for row in rows:
        begins = [begin for begin in BOUNDS if row.startswith(f"| {begin}")]
        assert begins, f"no test of {row}"
        missing = [text for text in BOUNDS[max(begins, key=len)] if text not in row]
        assert not missing, row
    assert len(rows) == len(BOUNDS)
    assert proxy._RESPONSE_ID.pattern.endswith(rb'{1,200})"')
