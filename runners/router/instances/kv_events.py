"""The exact index: what an engine's prefix cache holds, by its KV events.

The engine names its blocks by hashes of its own. It also sends their token ids, so every block gets the key that the
router computes for a prompt (`prefix_index`), and both kinds of index answer the same question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from results.records.instance_events import InstanceChange, InstanceEvent
from runners.errors import RunnerError
from runners.router.prefix_index import chain_key
from runners.router.reporting import Report, ignore_event

if TYPE_CHECKING:
    import zmq

Hash = int | bytes
DEVICE = (None, "GPU")
"""`medium` of a block on the device; a CPU build of vLLM reports GPU too."""
REPLAY_LIMIT_S = 2.0
"""A replay that has not ended by then is given up."""
END_OF_REPLAY = -1


class BlockStored(msgspec.Struct, frozen=True, tag="BlockStored"):
    """Full blocks, each below the one before it, the first below `parent_block_hash` (None = a prompt's first)."""

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
    """One message: when, what, and which data-parallel rank."""

    ts: float
    events: list[KvEvent]
    rank: int | None = None


class EventIndex:
    """What one instance holds, by its events. `insert_keys` does nothing: a block counts once it is stored.

    `report` gets the keys that are new or gone, under the instance's name.
    """

    def __init__(self, block_tokens: int, instance: str = "", report: Report = ignore_event) -> None:
        self.block_tokens = block_tokens
        self.orphans = 0
        """Blocks that could not be placed: their parent was stored in a message that never came."""
        self._instance = instance
        self._report = report
        self._keys: dict[Hash, int] = {}
        """The engine's hash of a block -> our key."""
        self._held: dict[int, int] = {}
        """Our key -> how many of the engine's blocks it stands for (two adapters' blocks may hold the same tokens)."""

    def __len__(self) -> int:
        """Blocks held."""
        return len(self._keys)

    def count_matching(self, keys: Sequence[int]) -> int:
        """Tokens of the longest prefix of the path `keys` that it holds."""
        count = 0
        for key in keys:
            if key not in self._held:
                break
            count += 1
        return count * self.block_tokens

    def insert_keys(self, keys: Sequence[int]) -> None:
        """Nothing: the engine's events will."""

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
        """The keys that it did not hold before."""
        keys: list[int] = []
        parent = None if event.parent_block_hash is None else self._keys.get(event.parent_block_hash)
        lost = event.parent_block_hash is not None and parent is None
        size = event.block_size
        if lost or size != self.block_tokens or len(event.token_ids) < size * len(event.block_hashes):
            self.orphans += len(event.block_hashes)
            return keys
        for index, name in enumerate(event.block_hashes):
            try:
                parent = chain_key(parent, event.token_ids[index * size : (index + 1) * size])
            except OverflowError:  # no token id is below 0 or beyond 32 bits
                self.orphans += len(event.block_hashes) - index
                break
            if name not in self._keys:
                self._keys[name] = parent
                if parent not in self._held:
                    keys.append(parent)
                self._held[parent] = self._held.get(parent, 0) + 1
        return keys

    def _remove_block(self, name: Hash) -> int | None:
        """The key that it holds no longer; None = there is none."""
        key = self._keys.pop(name, None)
        if key is None:
            return None
        self._held[key] -= 1
        if self._held[key]:
            return None
        del self._held[key]
        return key


class Wire(Protocol):
    """Messages of one instance, never waited for."""

    def receive_live(self) -> tuple[int, bytes] | None:
        """The next live message (number, payload); None = there is none now."""

    def ask_replay(self, start: int) -> bool:
        """Ask for messages from number `start` on; False = this instance cannot replay."""

    def receive_replayed(self) -> tuple[int, bytes] | None:
        """The next replayed message; its number is END_OF_REPLAY after the last. None = there is none now."""

    def close(self) -> None:
        """Close the sockets."""


class KvEvents:
    """Keeps an `EventIndex` in step with one instance: numbers are checked, gaps are replayed, in order.

    Messages that come while a replay is under way wait for its end. A gap that cannot be closed empties the index: it
    then knows too little, never too much. `clock`: monotonic seconds.
    """

    def __init__(self, index: EventIndex, wire: Wire, clock: Callable[[], float]) -> None:
        self.index = index
        self.messages = 0
        self.gaps = 0
        """Times that messages were missing."""
        self.gaps_open = 0
        """Of these, those that no replay closed."""
        self.damaged = 0
        """Messages that could not be read."""
        self._wire = wire
        self._clock = clock
        self._next = 0
        """Number of the next message to apply."""
        self._last_ts = 0.0
        """The engine's own time of the last message applied."""
        self._waiting: dict[int, bytes] = {}
        self._replay_until_s: float | None = None

    def apply_messages(self, limit: int = 256) -> int:
        """Apply what has come, at most `limit` messages of each kind; returns how many. Never waits.

        Call it often (every 10 ms, or before each pick): a replay's messages do not announce themselves.
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
            self._waiting[number] = payload
        elif number == self._next:
            self._apply_message(number, payload)
        elif number < self._next:
            self._take_repeated(number, payload)
        else:
            self.gaps += 1
            self._waiting[number] = payload
            if self._wire.ask_replay(self._next):
                self._replay_until_s = self._clock() + REPLAY_LIMIT_S
            else:
                self._give_up()

    def _take_repeated(self, number: int, payload: bytes) -> None:
        """A number that was applied already: a message that a replay delivered first, or another engine process.

        A new process counts from 0 again, and its messages are younger than all before; its cache is empty.
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
                self._waiting[number] = payload
        if self._replay_until_s is not None and self._clock() > self._replay_until_s:
            self._end_replay()

    def _end_replay(self) -> None:
        """Apply what has come in order; what is still missing will not come."""
        self._replay_until_s = None
        while self._waiting:
            number = min(self._waiting)
            if number > self._next:
                self._give_up()
                return
            payload = self._waiting.pop(number)
            if number == self._next:
                self._apply_message(number, payload)

    def _give_up(self) -> None:
        """Start again, empty, from what has come after the last hole: what came before it may be gone by now."""
        self.gaps_open += 1
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
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # another form of message is one of these too
            return None


_DECODER: msgspec.msgpack.Decoder[_Batch] = msgspec.msgpack.Decoder(_Batch)


class ZmqWire:
    """The engine's publisher over ZMQ. The router binds `endpoint`, the engine connects to it.

    `endpoint`: e.g. `tcp://127.0.0.1:0` (any free port; `bound` says which). `replay_endpoint`: where the engine binds
    its replay socket; empty = it has none. Raises RunnerError where the endpoint cannot be bound.
    """

    def __init__(self, endpoint: str, replay_endpoint: str = "", topic: str = "kv-events") -> None:
        import zmq  # only routers with the exact index need it

        self._again, self._error, self._now = zmq.Again, zmq.ZMQError, zmq.NOBLOCK
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        live = context.socket(zmq.SUB)
        live.setsockopt(zmq.LINGER, 0)
        live.setsockopt(zmq.RCVHWM, 0)
        try:
            live.bind(endpoint.removesuffix(":0") + ":*" if endpoint.endswith(":0") else endpoint)
        except zmq.ZMQError as error:
            live.close()
            raise RunnerError(
                f"KV events: cannot bind {endpoint}: {error.strerror}",
                remedy="give another port, or 0 for any free one",
            ) from error
        live.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.bound: str = live.getsockopt_string(zmq.LAST_ENDPOINT)
        self.fd = int(live.getsockopt(zmq.FD))
        """Becomes readable when messages come; then poll until nothing is left."""
        self._live: zmq.Socket[bytes] = live
        self._replay: zmq.Socket[bytes] | None = None
        if replay_endpoint:
            replay = context.socket(zmq.DEALER)
            replay.setsockopt(zmq.LINGER, 0)
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
