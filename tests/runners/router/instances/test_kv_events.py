"""The exact index: it follows the engine's words, closes gaps by replay, and where it cannot, knows too little."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import msgspec
import pytest

from results.records.instance_events import InstanceEvent
from runners.errors import RunnerError
from runners.router.instances import kv_events
from runners.router.instances.kv_events import (
    END_OF_REPLAY,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    EventIndex,
    KvEvents,
)
from runners.router.prefix_index import make_block_keys
from tests.runners.router.kv_publisher import BLOCK, stored


def removed(*names: int) -> dict[str, object]:
    return {"type": "BlockRemoved", "block_hashes": list(names), "medium": "GPU", "group_idx": 0}


class Engine:
    """Says what an engine says; messages may be lost on the way, and asked for again."""

    def __init__(self, *, replays: bool = True) -> None:
        self.replays = replays
        self.sent: list[tuple[int, bytes]] = []
        self.buffer = 100
        self.live: list[tuple[int, bytes]] = []
        self.again: list[tuple[int, bytes]] = []
        self.asked: list[int] = []
        self.silent = False
        self._ts = 0.0
        self._number = 0

    def say(self, *events: dict[str, object], lost: bool = False) -> None:
        self._ts += 1
        payload = msgspec.msgpack.encode([self._ts, list(events), 0])
        self.sent.append((self._number, payload))
        if not lost:
            self.live.append((self._number, payload))
        self._number += 1

    def restart(self) -> None:
        self._number = 0
        self.sent = []

    def receive_live(self) -> tuple[int, bytes] | None:
        return self.live.pop(0) if self.live else None

    def ask_replay(self, start: int) -> bool:
        self.asked.append(start)
        if self.replays and not self.silent:
            self.again += [one for one in self.sent[-self.buffer :] if one[0] >= start] + [(END_OF_REPLAY, b"")]
        return self.replays

    def receive_replayed(self) -> tuple[int, bytes] | None:
        return self.again.pop(0) if self.again else None

    def close(self) -> None:
        pass


def follow(engine: Engine, clock: float = 0.0) -> KvEvents:
    events = KvEvents(EventIndex(BLOCK), engine, lambda: clock)
    while events.apply_messages():
        pass
    return events


def held(events: KvEvents, tokens: list[int]) -> int:
    return events.index.count_matching(make_block_keys(tokens, BLOCK))


PROMPT = list(range(100, 116))


def test_stored_blocks_are_matched_by_the_routers_own_keys() -> None:
    engine = Engine()
    engine.say(stored(1, PROMPT[:8]))
    engine.say(stored(3, PROMPT[8:], parent=2))
    events = follow(engine)
    assert held(events, PROMPT) == 16
    assert held(events, [*PROMPT[:4], 9, 9, 9, 9]) == 4
    assert len(events.index) == 4
    assert events.gaps == 0


def test_blocks_elsewhere_than_on_the_device_do_not_count() -> None:
    engine = Engine()
    engine.say(stored(1, PROMPT) | {"medium": "CPU"})
    assert held(follow(engine), PROMPT) == 0


def test_hashes_may_be_bytes_and_another_block_size_is_left_out() -> None:
    engine = Engine()
    engine.say(stored(1, PROMPT[:4]) | {"block_hashes": [b"\x01\x02"]})
    engine.say(stored(7, PROMPT) | {"block_size": 8, "block_hashes": [7, 8]})
    events = follow(engine)
    assert held(events, PROMPT) == 4
    assert len(events.index) == 1


class Walked(dict[int, bytes]):
    """Counts how often its keys are walked through."""

    walks = 0

    def __iter__(self) -> Iterator[int]:
        self.walks += 1
        return super().__iter__()


def test_messages_that_wait_for_a_replay_are_put_in_order_once() -> None:
    """Looking for the lowest number again for each message held every stream for half a second at 10,000 messages."""
    engine = Engine()
    engine.say(stored(1, PROMPT[:4]), lost=True)
    for block in range(1, 4):
        engine.say(stored(block + 1, PROMPT[4 * block : 4 * block + 4], parent=block))
    events = KvEvents(EventIndex(BLOCK), engine, lambda: 0.0)
    waiting = Walked()
    events._waiting = waiting
    while events.apply_messages():
        pass
    assert held(events, PROMPT) == 16
    assert waiting.walks == 1


def test_messages_that_the_replay_brought_first_are_not_taken_for_a_new_engine() -> None:
    engine = Engine()
    engine.say(stored(1, PROMPT[:8]), lost=True)
    engine.say(stored(3, PROMPT[8:12], parent=2))
    engine.say(stored(4, PROMPT[12:], parent=3))
    events = KvEvents(EventIndex(BLOCK), engine, lambda: 0.0)
    events.apply_messages(limit=1)
    for _ in range(5):
        events.apply_messages(limit=3)
    assert held(events, PROMPT) == 16
    assert engine.asked == [0]


def test_a_gap_that_cannot_be_closed_empties_the_index() -> None:
    for engine in (Engine(replays=False), Engine()):
        engine.say(stored(1, PROMPT[:8]))
        engine.say(removed(2), lost=True)
        engine.buffer = 1
        engine.say(stored(9, [1, 2, 3, 4]))
        events = follow(engine)
        assert events.gaps_open == 1
        assert held(events, PROMPT) == 0, "a removal may have been lost: too little is known, never too much"
        assert held(events, [1, 2, 3, 4]) == 4
        engine.say(stored(20, [5, 6, 7, 8]))
        events.apply_messages()
        assert held(events, [5, 6, 7, 8]) == 4


def test_a_second_hole_behind_the_first_empties_the_index_again() -> None:
    engine, now = Engine(), [0.0]
    engine.silent = True
    engine.say(stored(1, PROMPT), lost=True)
    engine.say(stored(9, [1, 2, 3, 4]))
    engine.say(removed(9), lost=True)
    engine.say(stored(10, [5, 6, 7, 8]))
    events = KvEvents(EventIndex(BLOCK), engine, lambda: now[0])
    events.apply_messages()
    now[0] = 5.0
    events.apply_messages()
    assert held(events, [1, 2, 3, 4]) == 0
    assert held(events, [5, 6, 7, 8]) == 4


def test_a_replay_without_an_end_is_given_up_in_time() -> None:
    engine, now = Engine(), [0.0]
    engine.silent = True
    engine.say(stored(1, PROMPT), lost=True)
    engine.say(stored(9, [1, 2, 3, 4]))
    events = KvEvents(EventIndex(BLOCK), engine, lambda: now[0])
    events.apply_messages()
    assert held(events, [1, 2, 3, 4]) == 0, "waiting for the replay"
    now[0] = 5.0
    events.apply_messages()
    assert held(events, [1, 2, 3, 4]) == 4
    assert events.gaps_open == 1


def test_a_new_engine_process_begins_with_an_empty_index() -> None:
    engine = Engine()
    engine.say(stored(1, PROMPT))
    engine.say(stored(30, [1, 2, 3, 4]))
    events = follow(engine)
    engine.restart()
    engine.say(stored(1, [5, 6, 7, 8]))
    while events.apply_messages():
        pass
    assert held(events, PROMPT) == 0
    assert held(events, [5, 6, 7, 8]) == 4


def test_a_damaged_message_is_counted_and_passed_over() -> None:
    engine = Engine()
    engine.say(stored(1, PROMPT[:4]))
    engine.live.append((1, b"\xc1nonsense"))
    engine._number = 2
    engine.say(stored(2, PROMPT[4:8], parent=1))
    events = follow(engine)
    assert events.damaged == 1
    assert held(events, PROMPT) == 8


def test_token_ids_that_cannot_be_are_passed_over() -> None:
    engine = Engine()
    events = follow(engine)
    engine.say(stored(0, [1, 2, 3, -4]), stored(20, [1, 2, 3, 4]))
    events.apply_messages()
    assert held(events, [1, 2, 3, 4]) == 4
    assert len(events.index) == 1


def test_blocks_beyond_the_limit_of_an_index_do_not_count() -> None:
    """An engine that never reports a removal must not take all of the router's memory."""
    engine = Engine()
    events = KvEvents(EventIndex(BLOCK, limit_blocks=3), engine, lambda: 0.0)
    engine.say(stored(1, PROMPT))
    events.apply_messages()
    assert (len(events.index), held(events, PROMPT)) == (3, 12)
    engine.say(removed(3), stored(20, [1, 2, 3, 4]))
    events.apply_messages()
    assert (len(events.index), held(events, PROMPT), held(events, [1, 2, 3, 4])) == (3, 8, 4)


def test_a_name_longer_than_a_hash_is_damage() -> None:
    engine = Engine()
    engine.say(stored(1, PROMPT[:4]) | {"block_hashes": [b"x" * 65]})
    events = follow(engine)
    assert (events.damaged, len(events.index)) == (1, 0)


def test_a_replay_that_brings_too_much_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages wait for its end; an engine may flood while it withholds the missing one."""
    monkeypatch.setattr(kv_events, "WAITING_LIMIT_BYTES", 10_000)
    engine = Engine()
    engine.silent = True
    engine.say(stored(1, PROMPT), lost=True)
    engine.say(stored(9, [1, 2, 3, 4]))
    events = KvEvents(EventIndex(BLOCK), engine, lambda: 0.0)
    events.apply_messages()
    for name in range(100, 200):
        engine.say(stored(name, list(range(name, name + BLOCK))))
    while events.apply_messages():
        pass
    assert events.gaps_open == 1
    assert held(events, [1, 2, 3, 4]) == 4
    assert held(events, [199, 200, 201, 202]) == 4, "it follows the live messages again"


def test_it_holds_exactly_what_a_small_cache_holds_under_eviction() -> None:
    """A pool of 12 blocks under 200 prompts: the index equals the pool after every message."""
    source, engine = random.Random(4), Engine()
    events, name, checked = KvEvents(EventIndex(BLOCK), engine, lambda: 0.0), 0, 0
    pool: dict[int, int] = {}
    for _ in range(200):
        prompt = [source.randrange(3)] * 8 + [source.randrange(1000)] * 4
        path = make_block_keys(prompt, BLOCK)
        parent = None
        for place, key in enumerate(path):
            if key not in pool:
                while len(pool) >= 12:
                    old = next(one for one in pool if one not in path)
                    engine.say(removed(pool.pop(old)))
                name += 1
                engine.say(stored(name, prompt[place * BLOCK : (place + 1) * BLOCK], parent), lost=name % 17 == 0)
                pool[key] = name
            parent = pool[key]
        while events.apply_messages():
            pass
        if name % 17:  # a message that is lost last is missed only when the next one comes
            assert set(events.index._held) == set(pool)
            checked += 1
    assert checked > 150
    assert events.gaps > 5


def test_over_real_sockets_with_a_replay() -> None:
    zmq = pytest.importorskip("zmq")
    from runners.router.instances.kv_events import ZmqWire

    context = zmq.Context.instance()
    router = context.socket(zmq.ROUTER)
    port = router.bind_to_random_port("tcp://127.0.0.1")
    wire = ZmqWire("tcp://127.0.0.1:0", f"tcp://127.0.0.1:{port}")
    publisher = context.socket(zmq.PUB)
    publisher.connect(wire.bound)
    source = Engine()
    source.say(stored(1, PROMPT[:8]))
    source.say(stored(3, PROMPT[8:], parent=2))
    events = KvEvents(EventIndex(BLOCK), wire, time.monotonic)
    try:
        deadline = time.monotonic() + 10
        while held(events, PROMPT) < 16 and time.monotonic() < deadline:
            number, payload = source.sent[1]  # the first one is lost for good
            publisher.send_multipart([b"kv-events", number.to_bytes(8, "big"), payload])
            events.apply_messages()
            if router.poll(20):
                client, _, start = router.recv_multipart()
                for number, payload in source.sent[int.from_bytes(start, "big") :]:
                    router.send_multipart([client, b"", b"kv-events", number.to_bytes(8, "big"), payload])
                router.send_multipart([client, b"", b"", (-1).to_bytes(8, "big", signed=True), b""])
        assert held(events, PROMPT) == 16
        assert events.gaps_open == 0
    finally:
        events.close()
        for socket in (publisher, router):
            socket.close(0)


def test_a_message_beyond_its_limit_never_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    zmq = pytest.importorskip("zmq")
    monkeypatch.setattr(kv_events, "MESSAGE_LIMIT_BYTES", 10_000)
    wire = kv_events.ZmqWire("tcp://127.0.0.1:0")
    publisher = zmq.Context.instance().socket(zmq.PUB)
    publisher.connect(wire.bound)
    sizes: list[int] = []

    def receive_soon() -> None:
        deadline = time.monotonic() + 10
        sizes.clear()
        while not sizes and time.monotonic() < deadline:
            publisher.send_multipart([b"kv-events", bytes(8), bytes(9_000)])
            time.sleep(0.02)
            while (message := wire.receive_live()) is not None:
                sizes.append(len(message[1]))

    try:
        receive_soon()
        publisher.send_multipart([b"kv-events", bytes(8), bytes(11_000)])
        for _ in range(3):
            receive_soon()
            assert set(sizes) == {9_000}, "the connection is made again"
    finally:
        wire.close()
        publisher.close(0)


def test_an_endpoint_that_cannot_be_bound_is_named() -> None:
    pytest.importorskip("zmq")
    from runners.router.instances.kv_events import ZmqWire

    wire = ZmqWire("tcp://127.0.0.1:0")
    try:
        with pytest.raises(RunnerError, match=wire.bound):
            ZmqWire(wire.bound)
    finally:
        wire.close()


def test_events_are_typed_as_the_engine_tags_them() -> None:
    index = EventIndex(BLOCK)
    index.apply_event(BlockStored([1], PROMPT[:4], BLOCK))
    assert len(index) == 1
    index.insert_keys(make_block_keys(PROMPT, BLOCK))
    assert len(index) == 1, "what is sent there counts when the engine says so"
    index.apply_event(BlockRemoved([1]))
    index.apply_event(AllBlocksCleared())
    assert len(index) == 0


def test_keys_that_are_new_or_gone_are_reported_under_the_instance() -> None:
    reported: list[InstanceEvent] = []
    index = EventIndex(BLOCK, "e0", reported.append)
    first, second = make_block_keys(PROMPT[:8], BLOCK)
    index.apply_event(BlockStored([1, 2], PROMPT[:8], BLOCK))
    index.apply_event(BlockStored([50], PROMPT[:4], BLOCK))  # the same tokens under another adapter
    index.apply_event(BlockRemoved([1, 7]))
    index.apply_event(BlockRemoved([50, 2]))
    index.apply_event(AllBlocksCleared())
    index.apply_event(BlockStored([1], PROMPT[:4], BLOCK))
    index.apply_event(AllBlocksCleared())
    assert reported == [
        InstanceEvent("e0", "blocks_stored", keys=(first, second)),
        InstanceEvent("e0", "blocks_removed", keys=(first, second)),
        InstanceEvent("e0", "blocks_stored", keys=(first,)),
        InstanceEvent("e0", "blocks_cleared"),
    ]
