"""The exact index: the contents of an engine's prefix cache, from its KV events.

The engine identifies blocks by its own hashes but also sends their token ids, so each block gets the key that the
router computes for a prompt (`prefix_index`), and both kinds of index have one interface.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Protocol

import msgspec

from results.records.instance_events import InstanceChange, InstanceEvent
from runners.errors import RunnerError
from runners.router.prefix_index import make_chained_key
from runners.router.reporting import Report, ignore_event

if TYPE_CHECKING:
    import zmq

Hash = int | Annotated[bytes, msgspec.Meta(max_length=64)]
TOPIC = "kv-events"
DEVICE = (None, "GPU")
"""`medium` of a block on the device; a CPU build of vLLM reports GPU too."""
REPLAY_LIMIT_S = 2.0
"""Time limit of a replay."""
END_OF_REPLAY = -1
BLOCKS_LIMIT = 1 << 20
"""Blocks of an index whose instance reports no larger capacity: some 350 MB of the router's memory."""
MESSAGE_LIMIT_BYTES = 8 << 20
"""A prompt of a million tokens that a connector loads at once takes 7 MB."""
QUEUE_LIMIT = 10_000
"""Messages that wait in the socket, one per engine step; those beyond are a gap, which a replay closes."""
WAITING_LIMIT_BYTES = 64 << 20
"""Messages that wait for the end of a replay."""


class BlockStored(msgspec.Struct, frozen=True, tag="BlockStored"):
    """Full blocks in path order; the first follows `parent_block_hash` (None = it begins a prompt)."""

    block_hashes: list[Hash]
    token_ids: list[int]
    block_size: int
    parent_block_hash: Hash | None = None
    medium: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag="BlockRemoved"):
    """Blocks that were evicted."""

    block_hashes: list[Hash]
    medium: str | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag="AllBlocksCleared"):
    """The cache was reset."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    """One message: time, events, data-parallel rank."""

    ts: float
    events: list[KvEvent]
    rank: int | None = None


class EventIndex:
    """The blocks that one instance holds, from its events. A block counts once the engine has stored it.

    `report` receives the new and the removed keys under the instance's name. Blocks beyond `limit_blocks` do not count.
    """

    def __init__(
        self,
        block_tokens: int,
        instance: str = "",
        report: Report = ignore_event,
        limit_blocks: int = BLOCKS_LIMIT,
    ) -> None:
        self.block_tokens = block_tokens
        self._limit_blocks = limit_blocks
        self._instance = instance
        self._report = report
        self._keys: dict[Hash, int] = {}
        """The engine's hash of a block -> its key in the index."""
        self._held: dict[int, int] = {}
        """Key -> number of the engine's blocks with it (blocks of two adapters may hold the same tokens)."""

    def __len__(self) -> int:
        """Blocks held."""
        return len(self._keys)

    def count_matching(self, keys: Sequence[int]) -> int:
        """Tokens of the longest cached prefix of the path `keys`."""
        count = 0
        for key in keys:
            if key not in self._held:
                break
            count += 1
        return count * self.block_tokens

    def insert_keys(self, keys: Sequence[int]) -> None:
        """Do nothing: the engine's events report what it stores."""

    def clear(self) -> None:
        if self._keys:
            self._report(InstanceEvent(self._instance, "blocks_cleared"))
        self._keys.clear()
        self._held.clear()

    def apply_event(self, event: KvEvent) -> None:
        if isinstance(event, AllBlocksCleared):
            self.clear()
        elif event.medium in DEVICE:
            what: InstanceChange = "blocks_removed"
            if isinstance(event, BlockStored):
                what, keys = "blocks_stored", self._store_blocks(event)
            else:
                keys = [key for name in event.block_hashes if (key := self._remove_block(name)) is not None]
            if keys:
                self._report(InstanceEvent(self._instance, what, keys=tuple(keys)))

    def _store_blocks(self, event: BlockStored) -> list[int]:
        """Store the blocks whose parent and size are known; returns the keys that are new."""
        keys: list[int] = []
        parent = None if event.parent_block_hash is None else self._keys.get(event.parent_block_hash)
        lost = event.parent_block_hash is not None and parent is None
        size = event.block_size
        if lost or size != self.block_tokens or len(event.token_ids) < size * len(event.block_hashes):
            return keys
        for index, name in enumerate(event.block_hashes):
            try:
                parent = make_chained_key(parent, event.token_ids[index * size : (index + 1) * size])
            except OverflowError:  # an invalid token id, below 0 or beyond 64 bits
                break
            if name not in self._keys:
                if len(self._keys) >= self._limit_blocks:
                    break
                self._keys[name] = parent
                if parent not in self._held:
                    keys.append(parent)
                self._held[parent] = self._held.get(parent, 0) + 1
        return keys

    def _remove_block(self, name: Hash) -> int | None:
        """Remove a block; returns its key if no other block has it, else None."""
        key = self._keys.pop(name, None)
        if key is None:
            return None
        self._held[key] -= 1
        if self._held[key]:
            return None
        del self._held[key]
        return key


class Wire(Protocol):
    """The messages of one instance; no method blocks."""

    def receive_live(self) -> tuple[int, bytes] | None:
        """The next live message (number, payload); None = none available."""

    def ask_replay(self, start: int) -> bool:
        """Request the messages from number `start` on; False = this instance cannot replay."""

    def receive_replayed(self) -> tuple[int, bytes] | None:
        """The next replayed message; END_OF_REPLAY is the number after the last. None = none available."""

    def close(self) -> None: ...


class KvEvents:
    """Keeps an `EventIndex` in sync with one instance: checks message numbers and replays gaps in order.

    Messages that arrive during a replay wait for its end. A gap that cannot be closed empties the index, so that it
    never reports blocks that the instance does not hold. `clock`: monotonic seconds.
    """

    def __init__(self, index: EventIndex, wire: Wire, clock: Callable[[], float]) -> None:
        self.index = index
        self.messages = 0
        self.gaps = 0
        """Times that messages were missing."""
        self.gaps_open = 0
        """Gaps that no replay closed."""
        self.damaged = 0
        """Messages that could not be decoded."""
        self._wire = wire
        self._clock = clock
        self._next = 0
        """Number of the next message to apply."""
        self._last_ts = 0.0
        """Engine time of the last message applied."""
        self._waiting: dict[int, bytes] = {}
        self._waiting_bytes = 0
        """Bytes of the messages that were put there since it was empty."""
        self._replay_until_s: float | None = None

    def apply_messages(self, limit: int = 256) -> int:
        """Apply available messages, at most `limit` live and `limit` replayed ones; returns their number. Never blocks.

        Call it often (every 10 ms, or before each pick): replayed messages trigger no reader callback.
        """
        before = self.messages
        for _ in range(limit):
            message = self._wire.receive_live()
            if message is None:
                break
            self._take_message(*message)
        if self._replay_until_s is not None:
            self._follow_replay(limit)
        return self.messages - before

    def close(self) -> None:
        self._wire.close()

    def _take_message(self, number: int, payload: bytes) -> None:
        self.messages += 1
        if self._replay_until_s is not None:
            self._keep_waiting(number, payload)
        elif number == self._next:
            self._apply_message(number, payload)
        elif number < self._next:
            self._take_repeated(number, payload)
        else:
            self.gaps += 1
            self._keep_waiting(number, payload)
            if self._wire.ask_replay(self._next):
                self._replay_until_s = self._clock() + REPLAY_LIMIT_S
            else:
                self._give_up()

    def _take_repeated(self, number: int, payload: bytes) -> None:
        """Handle a number that was already applied: a replay delivered the message first, or the engine was restarted.

        A new engine process counts from 0 again, its messages are newer than all before, and its cache is empty.
        """
        batch = self._read_batch(payload)
        if batch is None or batch.ts <= self._last_ts:
            return
        self.index.clear()
        self._next = 0
        self.messages -= 1
        self._take_message(number, payload)

    def _follow_replay(self, limit: int) -> None:
        for _ in range(limit):
            message = self._wire.receive_replayed()
            if message is None:
                break
            self.messages += 1
            number, payload = message
            if number == END_OF_REPLAY:
                self._end_replay()
                return
            if number >= self._next:
                self._keep_waiting(number, payload)
        if self._replay_until_s is not None and self._clock() > self._replay_until_s:
            self._end_replay()

    def _keep_waiting(self, number: int, payload: bytes) -> None:
        """Hold a message until the end of the replay; too many of them end it."""
        self._waiting[number] = payload
        self._waiting_bytes += len(payload)
        if self._replay_until_s is not None and self._waiting_bytes > WAITING_LIMIT_BYTES:
            self._end_replay()

    def _end_replay(self) -> None:
        """Apply the waiting messages in order; messages still missing are lost."""
        self._replay_until_s, self._waiting_bytes = None, 0
        for number in sorted(self._waiting):
            if number > self._next:
                self._give_up()
                return
            payload = self._waiting.pop(number)
            if number == self._next:
                self._apply_message(number, payload)

    def _give_up(self) -> None:
        """Apply the waiting messages and clear the index at each gap: blocks stored before it may be evicted."""
        self.gaps_open += 1
        self._waiting_bytes = 0
        for number in sorted(self._waiting):
            if number != self._next:
                self.index.clear()
            self._apply_message(number, self._waiting[number])
        self._waiting.clear()

    def _apply_message(self, number: int, payload: bytes) -> None:
        self._next = number + 1
        batch = self._read_batch(payload)
        if batch is None:
            self.damaged += 1
            return
        self._last_ts = batch.ts
        for event in batch.events:
            self.index.apply_event(event)

    def _read_batch(self, payload: bytes) -> _Batch | None:
        try:
            return _DECODER.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # DecodeError includes an unknown format
            return None


_DECODER: msgspec.msgpack.Decoder[_Batch] = msgspec.msgpack.Decoder(_Batch)


class ZmqWire:
    """The engine's publisher over ZMQ. The router binds `endpoint`, the engine connects to it.

    `endpoint`: e.g. `tcp://127.0.0.1:0` (any free port, see `bound`). `replay_endpoint`: where the engine binds its
    replay socket; empty = it has none. Raises RunnerError if the endpoint cannot be bound.
    """

    def __init__(self, endpoint: str, replay_endpoint: str = "") -> None:
        import zmq  # only routers with the exact index need it

        self._again, self._error, self._now = zmq.Again, zmq.ZMQError, zmq.NOBLOCK
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        live = context.socket(zmq.SUB)
        live.setsockopt(zmq.LINGER, 0)
        live.setsockopt(zmq.RCVHWM, QUEUE_LIMIT)
        live.setsockopt(zmq.MAXMSGSIZE, MESSAGE_LIMIT_BYTES)
        try:
            live.bind(endpoint.removesuffix(":0") + ":*" if endpoint.endswith(":0") else endpoint)
        except zmq.ZMQError as error:
            live.close()
            raise RunnerError(
                f"KV events: cannot bind {endpoint}: {error.strerror}",
                remedy="give another port, or 0 for any free one",
            ) from error
        live.setsockopt_string(zmq.SUBSCRIBE, TOPIC)
        self.bound: str = live.getsockopt_string(zmq.LAST_ENDPOINT)
        self.fd = int(live.getsockopt(zmq.FD))
        """Becomes readable when messages arrive; then poll until none is left."""
        self._live: zmq.Socket[bytes] = live
        self._replay: zmq.Socket[bytes] | None = None
        if replay_endpoint:
            replay = context.socket(zmq.DEALER)
            replay.setsockopt(zmq.LINGER, 0)
            replay.setsockopt(zmq.MAXMSGSIZE, MESSAGE_LIMIT_BYTES)
            replay.connect(replay_endpoint)
            self._replay = replay

    def receive_live(self) -> tuple[int, bytes] | None:
        """The next live message: frames are topic, number (8 bytes, big-endian), payload."""
        parts = self._receive_parts(self._live)
        return None if parts is None or len(parts) != 3 else (int.from_bytes(parts[1], "big"), parts[2])

    def ask_replay(self, start: int) -> bool:
        if self._replay is None:
            return False
        try:
            self._replay.send_multipart([b"", start.to_bytes(8, "big")], self._now)
        except self._error:
            return False
        return True

    def receive_replayed(self) -> tuple[int, bytes] | None:
        """The next replayed message: frames are empty, (topic,) number, payload."""
        parts = self._receive_parts(self._replay) if self._replay is not None else None
        if parts is None or len(parts) < 3:
            return None
        return int.from_bytes(parts[-2], "big", signed=True), parts[-1]

    def close(self) -> None:
        self._live.close()
        if self._replay is not None:
            self._replay.close()

    def _receive_parts(self, socket: zmq.Socket[bytes]) -> list[bytes] | None:
        try:
            return socket.recv_multipart(self._now)
        except self._again:
            return None
