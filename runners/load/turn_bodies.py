"""Request bodies of the turns that come next, built ahead of their time, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from runners.load.block_prompts import BlockShape, prompt_pieces
from runners.load.prompts import body_preamble
from runners.load.replay_plan import PlannedTurn


class AskShape(msgspec.Struct, frozen=True):
    """What every request of a replay asks for, besides its prompt and its output length."""

    model: str
    evidence: str
    """`token_ids` or `usage`, see LoadSpec.token_evidence."""
    blocks: BlockShape


class TurnBodies:
    """Builds a slice per `advance`: first what is expected soon, then the first turns of sessions still to come.

    The sessions to come fill at most half of `budget_bytes`, so that the others find room. A body that is not ready at
    its time is built in `take` and counted in `late`.
    """

    def __init__(self, shape: AskShape, turns: tuple[PlannedTurn, ...], *, budget_bytes: int = 256 << 20) -> None:
        self.late = 0
        self._shape = shape
        self._turns = turns
        self._budget = budget_bytes
        self._soon: dict[int, None] = {}
        """Wanted bodies, oldest first."""
        self._later: dict[int, None] = {}
        self._ready: dict[int, bytes] = {}
        self._held = 0
        self._building: int | None = None
        self._parts: list[bytes] = []
        self._pieces: Iterator[bytes] = iter(())

    def expect(self, index: int) -> None:
        """The turn's time draws near: what it waits for has been sent."""
        self._later.pop(index, None)
        if index not in self._ready and index != self._building:
            self._soon[index] = None

    def expect_later(self, index: int) -> None:
        """A turn to build when nothing is expected sooner; in the order of these calls."""
        self._later[index] = None

    def advance(self) -> bool:
        """One slice of work; False when nothing is left to build, or no room."""
        if self._building is None:
            index = self._next()
            if index is None:
                return False
            self._begin(index)
        piece = next(self._pieces, None)
        if piece is not None:
            self._parts.append(piece)
        else:
            self._keep()
        return True

    def take(self, index: int) -> bytes:
        """The body of a turn, once."""
        body = self._ready.pop(index, None)
        if body is not None:
            self._held -= len(body)
            return body
        self.late += 1
        if self._building != index:
            self.forget(index)
            return b"".join((self._preamble(index), b",".join(self._pieces_of(index)), b"]}"))
        self._parts.extend(self._pieces)
        return self._finished()

    def forget(self, index: int) -> None:
        """The turn will not be sent."""
        self._soon.pop(index, None)
        self._later.pop(index, None)
        if self._building == index:
            self._finished()
        self._held -= len(self._ready.pop(index, b""))

    def _next(self) -> int | None:
        for queue, room in ((self._soon, self._budget), (self._later, self._budget // 2)):
            if queue:
                if self._held >= room:
                    return None
                index = next(iter(queue))
                del queue[index]
                return index
        return None

    def _begin(self, index: int) -> None:
        self._building, self._parts, self._pieces = index, [], self._pieces_of(index)

    def _keep(self) -> None:
        assert self._building is not None
        index = self._building
        body = self._finished()
        self._ready[index] = body
        self._held += len(body)

    def _finished(self) -> bytes:
        assert self._building is not None
        body = b"".join((self._preamble(self._building), b",".join(self._parts), b"]}"))
        self._building, self._parts, self._pieces = None, [], iter(())
        return body

    def _preamble(self, index: int) -> bytes:
        return body_preamble(self._shape.model, self._turns[index].output_tokens, self._shape.evidence)

    def _pieces_of(self, index: int) -> Iterator[bytes]:
        return prompt_pieces(self._shape.blocks, self._turns[index].prompt)
