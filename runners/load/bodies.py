"""Request bodies, built ahead of their time in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator

import msgspec


def build_body_preamble(model: str, output_tokens: int, evidence: str) -> bytes:
    """A request's body up to its prompt's opening bracket; `evidence` as in LoadSpec.token_evidence."""
    fields: dict[str, object] = {
        "model": model,
        "max_tokens": output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": evidence == "usage"},
        "return_token_ids": evidence == "token_ids",
    }
    return msgspec.json.encode(fields)[:-1] + b',"prompt":['


class Bodies:
    """Builds what is expected soon, then what comes later, a slice at a time.

    `preamble` and `pieces` give the parts of a body by its index: the head, and its prompt's ids as JSON numbers with
    commas between them. Bodies for later fill at most half of `budget_bytes`, which leaves room for the others. Memory
    is at most the budget plus one body. A body that is not ready at its time is built when it is taken; `late` counts
    these.
    """

    def __init__(
        self, preamble: Callable[[int], bytes], pieces: Callable[[int], Iterator[bytes]], *, budget_bytes: int
    ) -> None:
        self.late = 0
        self._preamble = preamble
        self._pieces_of = pieces
        self._budget = budget_bytes
        self._soon: OrderedDict[int, None] = OrderedDict()
        """Wanted bodies, oldest first."""
        self._later: OrderedDict[int, None] = OrderedDict()
        self._ready: dict[int, bytes] = {}
        self._held = 0
        self._building: int | None = None
        self._parts: list[bytes] = []
        self._pieces: Iterator[bytes] = iter(())

    def expect_soon(self, index: int) -> None:
        """Build this body next: its request is due soon. Bodies are built in the order of these calls."""
        self._later.pop(index, None)
        if not self._is_begun(index):
            self._soon[index] = None

    def expect_later(self, index: int) -> None:
        """Build this body when none is due soon, in the order of these calls."""
        if index not in self._soon and not self._is_begun(index):
            self._later[index] = None

    def _is_begun(self, index: int) -> bool:
        return index in self._ready or index == self._building

    def build_first(self, count: int) -> None:
        """Build until this many are ready, or the budget is full."""
        while len(self._ready) < count and self.build_slice():
            pass

    def build_slice(self) -> bool:
        """Build one slice; False when nothing is left to build, or there is no room."""
        if self._building is None:
            index = self._take_next()
            if index is None:
                return False
            self._building, self._parts, self._pieces = index, [], self._pieces_of(index)
        piece = next(self._pieces, None)
        if piece is not None:
            self._parts.append(piece)
        else:
            index = self._building
            self._ready[index] = body = self._finish_body()
            self._held += len(body)
        return True

    def take_body(self, index: int) -> bytes:
        """The body of a request; it is forgotten."""
        body = self._ready.pop(index, None)
        if body is not None:
            self._held -= len(body)
            return body
        self.late += 1
        if self._building == index:
            self._parts.extend(self._pieces)
            return self._finish_body()
        self.drop_body(index)
        return self._join_parts(index, list(self._pieces_of(index)))

    def drop_body(self, index: int) -> None:
        """Forget the body of a request that will not be sent."""
        self._soon.pop(index, None)
        self._later.pop(index, None)
        if self._building == index:
            self._building = None
        self._held -= len(self._ready.pop(index, b""))

    def _take_next(self) -> int | None:
        for queue, room in ((self._soon, self._budget), (self._later, self._budget // 2)):
            if queue:
                if self._held >= room:
                    return None
                return queue.popitem(last=False)[0]
        return None

    def _finish_body(self) -> bytes:
        assert self._building is not None
        body = self._join_parts(self._building, self._parts)
        self._building, self._parts = None, []
        return body

    def _join_parts(self, index: int, parts: list[bytes]) -> bytes:
        return b"".join((self._preamble(index), b",".join(parts), b"]}"))
