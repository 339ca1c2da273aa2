"""An engine's KV cache: blocks with reference counts, a prefix cache over them, and the least recently used go first.

As vLLM's block pool: full blocks of prompts stay findable by their key after the last request that used them has ended,
until their place is needed. A request's blocks are given up tail first, so that of two prefixes the longer one's end
goes before the common head.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class KvBlocks:
    """A pool of `capacity` blocks of `block_tokens` tokens each. A key stands for a block and all before it."""

    def __init__(self, capacity: int, block_tokens: int) -> None:
        if capacity < 1 or block_tokens < 1:
            raise ValueError(f"{capacity} blocks of {block_tokens} tokens: both must be at least 1")
        self.capacity = capacity
        self.block_tokens = block_tokens
        self.evicted = 0
        """Cached blocks whose place was taken, since the start."""
        self._users: dict[int, int] = {}
        """Key -> requests that use its block; 0 = none does, and its place may be taken."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Keys that no request uses, the one unused for longest first."""
        self._anonymous = 0
        """Blocks in use that have no key: of answers, and of partly filled prompts' ends."""

    @property
    def free(self) -> int:
        """Blocks that a request can have: empty ones, and cached ones that no request uses."""
        return self.capacity - self._anonymous - (len(self._users) - len(self._idle))

    @property
    def used(self) -> int:
        """Blocks that requests use now."""
        return self.capacity - self.free

    def match(self, keys: Sequence[int]) -> int:
        """How many blocks of the path `keys` are cached, from its start."""
        users = self._users
        count = 0
        for key in keys:
            if key not in users:
                break
            count += 1
        return count

    def idle_among(self, keys: Sequence[int]) -> int:
        """How many of these cached blocks no request uses: to use them takes as many of the free ones."""
        return sum(key in self._idle for key in keys)

    def use(self, keys: Sequence[int]) -> None:
        """One more request uses these blocks, all of them cached."""
        for key in keys:
            if not self._users[key]:
                del self._idle[key]
            self._users[key] += 1

    def take(self, count: int) -> bool:
        """Give a request `count` blocks without a key; False = there are not as many free, and nothing changes."""
        if count > self.free:
            return False
        self._anonymous += count
        self._evict()
        return True

    def name(self, key: int) -> bool:
        """A block in use without a key has been filled with this prefix; False = another one holds it already."""
        if key in self._users:
            return False
        self._anonymous -= 1
        self._users[key] = 1
        return True

    def release(self, keys: Sequence[int], anonymous: int) -> None:
        """A request ends: its named blocks stay cached, tails idle for longer than heads; the others are empty."""
        self._anonymous -= anonymous
        for key in reversed(keys):
            self._users[key] -= 1
            if not self._users[key]:
                self._idle[key] = None

    def fill(self, keys: Sequence[int], keep: int = 0) -> int:
        """Cache blocks that came from elsewhere, heads first, as far as there is room; `keep` blocks stay free.

        Returns how many are new.
        """
        held = [key for key in keys if key in self._users]
        self.use(held)  # or they would have to go for those that follow them
        new = [key for key in keys if key not in self._users][: max(0, self.free - keep)]
        self.take(len(new))
        for key in new:
            self.name(key)
        touched = {*held, *new}
        self.release([key for key in keys if key in touched], 0)
        return len(new)

    def _evict(self) -> None:
        while self._anonymous + len(self._users) > self.capacity:
            key, _ = self._idle.popitem(last=False)
            del self._users[key]
            self.evicted += 1
