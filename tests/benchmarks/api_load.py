"""The load process of `bench_router` for what a campaign never sends: chats, and completions of a text.

`python -m tests.benchmarks.api_load SPEC.json FORM` runs one open-loop cell as the load process does, with the same
client, clock and records, and prints its outcome. FORM is `chat` (messages to `/v1/chat/completions`) or `text` (a
string to `/v1/completions`). A token of the spec's `input_tokens` is a word of four bytes with its space.
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import msgspec
import uvloop

from results.records.layout import name_spec_beside
from results.records.load_specs import LoadSpec
from runners.child_process import write_spec
from runners.load.bodies import Bodies
from runners.load.messages import LoadError, LoadOutcome, read_load_spec
from runners.load.openloop import Cell
from runners.load.prompts import BUDGET_BYTES
from runners.target import Target, resolve_target

FORMS = ("chat", "text")
WORDS = tuple(f"{first}{second}{third}" for first in "bdfglmnprs" for second in "aeiou" for third in "dklmnrst")
MESSAGE_WORDS = 128
"""Words of each message but the last, which has the rest."""
RUN_LIMIT_S = 120.0


class ChatTarget(Target):
    """A server whose chats get what the client sends to completions."""

    __slots__ = ()

    def head(self, method: str, path: bytes, headers: bytes, length: int) -> bytes:
        return super().head(method, b"/v1/chat/completions", headers, length)


class ApiCell(Cell):
    """An open-loop cell with the bodies of a form."""

    def __init__(self, spec: LoadSpec, target: Target, form: str) -> None:
        super().__init__(spec, target)
        self._bodies = build_bodies(spec, form, len(self._offsets))


def build_bodies(spec: LoadSpec, form: str, count: int) -> Bodies:
    """The bodies of the first `count` requests, all of them expected in their order."""
    fields = {
        "model": spec.model,
        "max_tokens": spec.output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    opening = msgspec.json.encode(fields)[:-1]

    def begin_chat(index: int) -> bytes:
        return opening + b',"messages":['

    def begin_text(index: int) -> bytes:
        prompt = msgspec.json.encode(" ".join(draw_words(spec, index)))
        return opening + b',"prompt":%b,"stop":[' % prompt  # whatever is built ends with the end of a list

    def list_messages(index: int) -> Iterator[bytes]:
        return (msgspec.json.encode(message) for message in make_messages(draw_words(spec, index)))

    if form == "chat":
        bodies = Bodies(begin_chat, list_messages, budget_bytes=BUDGET_BYTES)
    else:
        bodies = Bodies(begin_text, lambda index: iter(()), budget_bytes=BUDGET_BYTES)
    for index in range(count):
        bodies.expect_soon(index)
    return bodies


def draw_words(spec: LoadSpec, index: int) -> list[str]:
    """The words of a request, by seed: no two requests of a bench begin alike."""
    return random.Random(f"{spec.seed} {spec.cell_index} {index}").choices(WORDS, k=spec.input_tokens)


def make_messages(words: list[str]) -> list[dict[str, str]]:
    """A conversation: a system message, then user and assistant in turn; the user has the last word."""
    count = max(2, len(words) // MESSAGE_WORDS)
    count += count % 2
    size = len(words) // count
    texts = [" ".join(words[size * number : size * (number + 1)]) for number in range(count - 1)]
    texts.append(" ".join(words[size * (count - 1) :]))
    roles = ["system", *("user" if number % 2 else "assistant" for number in range(1, count))]
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)]


def run_api_load(spec: LoadSpec, form: str) -> LoadOutcome:
    """Run a cell in a process of its own; its spec is stored beside its records."""
    path = write_spec(name_spec_beside(Path(spec.requests_path)), spec, LoadError)
    command = [sys.executable, "-m", "tests.benchmarks.api_load", str(path), form]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=RUN_LIMIT_S)
    return msgspec.json.decode(done.stdout, type=LoadOutcome)


async def _run_cell(spec: LoadSpec, form: str) -> LoadOutcome:
    target = await resolve_target(spec.url, LoadError)
    cell = ApiCell(spec, ChatTarget(*astuple(target)) if form == "chat" else target, form)
    return await cell.run(lambda tick: None, asyncio.Event())


def main() -> None:
    path, form = sys.argv[1:]
    if form not in FORMS:
        raise SystemExit(f"FORM is {form!r}: give one of {', '.join(FORMS)}")
    spec = read_load_spec(Path(path))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.stdout.buffer.write(msgspec.json.encode(runner.run(_run_cell(spec, form))))


if __name__ == "__main__":
    main()
