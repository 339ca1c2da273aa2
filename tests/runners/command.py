"""The `tracon` command in this process: the same entry point, without a second's start."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from typer.testing import Result

from results.records.errors import Refusal


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: int | str | None
    stdout: str
    stderr: str

    def data(self) -> Any:  # noqa: ANN401  # whatever JSON the command printed
        """stdout as JSON: it must be nothing else."""
        return json.loads(self.stdout)


Tracon = Callable[..., Done]
"""The fixture `tracon`: takes the words of a command."""


def refusal_of(done: Result) -> Refusal:
    """What a command that typer invoked was refused with; the entry point makes a paragraph and exit code 2 of it."""
    assert isinstance(done.exception, Refusal), done.output
    assert done.exception.exit_code == 2
    assert done.exception.remedy
    return done.exception
