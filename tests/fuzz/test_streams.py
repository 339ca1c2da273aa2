"""Whatever a server streams to the load generator, and whatever an engine publishes of its KV: counted or refused."""

from __future__ import annotations

import contextlib

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.router.instances.kv_events import EventIndex, KvEvents
from tests.examples import examples
from tests.fuzz.mutations import mutated
from tests.runners.load.test_stream import STREAM, exchange
from tests.runners.router.instances.test_instance_connection import pieces_of
from tests.runners.router.kv_publisher import stored

BATCH = msgspec.msgpack.encode([1.0, [stored(1, list(range(8))), {"type": "BlockRemoved", "block_hashes": [1]}], 0])


@given(mutated([STREAM]), st.lists(st.integers(0, 1 << 20), max_size=6))
@settings(max_examples=examples(300))
def test_a_stream(stream: bytes, cuts: list[int]) -> None:
    made = exchange()
    for number, piece in enumerate(pieces_of(stream, cuts)):
        made.feed(piece, 20 + number)
    made.complete(99)
    tokens = made.counted_tokens
    assert tokens is None or tokens >= 0
    assert made.ttft_s is None or made.ttft_s >= 0
    msgspec.json.encode(made.record(3, 4))


class Wire:
    """Publishes what it was given."""

    def __init__(self, payloads: list[bytes]) -> None:
        self._payloads = list(enumerate(payloads))

    def receive_live(self) -> tuple[int, bytes] | None:
        return self._payloads.pop(0) if self._payloads else None

    def ask_replay(self, start: int) -> bool:
        return False

    def receive_replayed(self) -> tuple[int, bytes] | None:
        return None

    def close(self) -> None: ...


@given(st.lists(mutated([BATCH]), min_size=1, max_size=4))
@settings(max_examples=examples(200))
def test_kv_events(payloads: list[bytes]) -> None:
    index = EventIndex(4)
    events = KvEvents(index, Wire(payloads), lambda: 0.0)
    with contextlib.closing(events):
        events.apply_messages()
    assert len(index) >= 0
    assert events.damaged <= len(payloads)
