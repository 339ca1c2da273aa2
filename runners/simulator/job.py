"""One request as a simulated engine sees it, and the count of prompt tokens over all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Job:
    """One request at an engine. `on_first` and `on_end` are called when its first and its last token are there."""

    keys: Sequence[int]
    """Keys of the prompt's full blocks."""
    input_tokens: int
    output_tokens: int
    on_first: Callable[[], None]
    on_end: Callable[[], None]
    cached_tokens: int = 0
    """Prompt tokens in the engine's cache when the prompt was first scheduled."""
    preemptions: int = 0
    generated: int = 0
    computed: int = 0
    """Tokens whose KV is there, or will be at the end of this step."""
    is_cancelled: bool = False
    external_tokens: int = 0
    """Prompt tokens that came from another engine for this request."""
    priority: int = 0
    """Lower = sooner, where the engine schedules by priority."""
    retains: bool = False
    """Its blocks stay in use after its end, until `Engine.release`."""
    on_allocated: Callable[[], object] | None = None
    """The KV of its prompt comes from another engine. Called when it has blocks for it; `Engine.resume` must follow."""
    named: list[int] = field(default_factory=list)
    anonymous: int = 0
    left: int = 0
    """Number of its anonymous full blocks in the pool after a preemption, where it may find them again; 0 = none."""
    number: int = 0
    """Number of its arrival at the engine."""
    admission: int = 0
    """Number of its last admission there."""
    queued_ns: int = 0
    """Since when it can be scheduled."""

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and of the answer so far."""
        return self.input_tokens + self.generated

    @property
    def is_decoding(self) -> bool:
        """One step gives one token."""
        return self.generated > 0 and self.input_tokens + self.generated - self.computed == 1

    @property
    def rank(self) -> tuple[int, int]:
        """By priority, then by arrival."""
        return self.priority, self.number


@dataclass(slots=True)
class PromptTally:
    """Prompt tokens of the requests that were scheduled, each counted once, by where their KV came from."""

    computed: int = 0
    cached: int = 0
    external: int = 0
