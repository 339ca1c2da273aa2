"""An engine's KV cache: blocks with reference counts, a prefix cache over them, and the least recently used go first.

As vLLM's block pool: full blocks of prompts stay findable by their key after the last request that used them has
ended, until their place is needed. Blocks of answers have no key, because no later prompt begins with them, but they
hold their places all the same. A request's blocks are given up tail first, so that of two prefixes the longer one's
end goes before the common head. A block that is not full is cached by no hash: it is empty as soon as its request ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile


class KvBlocks:
    """A pool of `capacity` blocks of `block_tokens` tokens each.

    A key, a number above 0, stands for a block and all before it.
    """

    def __init__(self, capacity: int, block_tokens: int) -> None:
        if capacity < 1 or block_tokens < 1:
            raise ValueError(f"{capacity} blocks of {block_tokens} tokens: both must be at least 1")
        self.capacity = capacity
        self.block_tokens = block_tokens
        self._users: dict[int, int] = {}
        """Key -> requests that use its block; 0 = none does, and its place may be taken."""
        self._idle: OrderedDict[int, int] = OrderedDict()
        """What no request uses, unused for longest first: a key and 1, or the negative number of the blocks that one
        request has left without keys, and how many they are."""
        self._left = 0
        """Numbers given to such blocks so far."""
        self._unnamed_idle = 0
        """Blocks that have such a number."""
        self._anonymous = 0
        """Blocks in use that have no key: of answers, and of partly filled prompts' ends."""
        self._named_used = 0
        self.gains = 0
        """Grows where blocks become free or new keys are cached. Between two gains no request comes to have room: to
        use cached blocks that are idle takes as many free ones as it saves, and an eviction saves nothing."""

    @property
    def free(self) -> int:
        """Blocks that a request can have: empty ones, and cached ones that no request uses."""
        return self.capacity - self._anonymous - self._named_used

    @property
    def used(self) -> int:
        """Blocks that requests use now."""
        return self.capacity - self.free

    def match(self, keys: Sequence[int]) -> int:
        """How many blocks of the path `keys` are cached, from its start."""
        return sum(1 for _ in takewhile(self._users.__contains__, keys))

    def count_idle(self, keys: Sequence[int]) -> int:
        """How many of these cached blocks no request uses: to use them takes as many of the free ones."""
        return sum(map(self._idle.__contains__, keys))

    def use(self, keys: Sequence[int]) -> None:
        """One more request uses these blocks, all of them cached."""
        users = self._users
        for key in keys:
            count = users[key]
            if not count:
                del self._idle[key]
                self._named_used += 1
            users[key] = count + 1

    def take(self, count: int) -> bool:
        """Give a request `count` blocks without a key; False = there are not as many free, and nothing changes."""
        if count > self.free:
            return False
        self._anonymous += count
        self._evict()
        return True

    def name(self, keys: Sequence[int]) -> list[int]:
        """Blocks in use without keys have been filled with these prefixes; returns those that no other block holds."""
        users = self._users
        new = [key for key in keys if key not in users]
        for key in new:
            users[key] = 1
        self._anonymous -= len(new)
        self._named_used += len(new)
        self.gains += bool(new)
        return new

    def release(self, keys: Sequence[int], anonymous: int, partial: int = 0) -> int:
        """A request ends: its blocks are idle, tails for longer than heads, and those with keys stay cached.

        `anonymous`: full blocks without keys; `partial`: those that are not full, which are empty from now on.
        Returns the number under which the `anonymous` ones can be reclaimed; 0 = there are none.
        """
        self._anonymous -= anonymous + partial
        self.gains += 1
        number = 0
        if anonymous:
            self._left += 1
            number = -self._left
            self._idle[number] = anonymous
            self._unnamed_idle += anonymous
        users, idle = self._users, self._idle
        for key in reversed(keys):
            count = users[key] - 1
            users[key] = count
            if not count:
                idle[key] = 1
                self._named_used -= 1
        return number

    def count_left(self, number: int) -> int:
        """How many of these anonymous blocks are still there, from the head of them on."""
        return self._idle.get(number, 0)

    def reclaim(self, number: int, count: int) -> None:
        """Use as many of these anonymous blocks again, the first ones; the others stay idle."""
        self._anonymous += count
        self._drop_idle(number, count)

    def _evict(self) -> None:
        excess = self._anonymous + self._unnamed_idle + len(self._users) - self.capacity
        idle, users = self._idle, self._users
        while excess > 0:
            key = next(iter(idle))
            if key > 0:
                del idle[key], users[key]
                excess -= 1
            else:
                gone = min(idle[key], excess)
                self._drop_idle(key, gone)
                excess -= gone

    def _drop_idle(self, number: int, count: int) -> None:
        if not count:
            return
        self._unnamed_idle -= count
        self._idle[number] -= count
        if not self._idle[number]:
            del self._idle[number]
