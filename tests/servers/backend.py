"""A small OpenAI-shaped instance that obeys: serves, hangs, fails, dies and comes back on its own port."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        read: dict[str, Any] = json.loads(self.body)
        return read


@dataclass
class Backend:
    """One instance. Change its fields at any time; they hold for the requests that come after."""

    name: str = "b"
    status: int = 200
    """Of completions; anything but 200 is answered as an error."""
    errors: int = -1
    """This many further completions are answered with `status`; -1 = all."""
    answer_headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    """Completions are read and never answered."""
    hang_after_head: bool = False
    health_status: int = 200
    health_hangs: bool = False
    tokens: int = 3
    ttft_s: float = 0.0
    itl_s: float = 0.0
    padding: str = ""
    """Added to the text of every token."""
    script: tuple[bytes, ...] = ()
    """Events of a stream, sent in place of tokens, usage and [DONE]."""
    gate: asyncio.Event | None = None
    """Waited for after the first token, or after `gate_at` events of the script."""
    gate_at: int = 1
    slow_pages_s: float = 0.0
    """How long `/tokenize` and the like take."""
    die_after: int = -1
    """Tokens before the connection is cut; 0 = after the head."""
    torn: bool = False
    """It is cut in the middle of a chunk."""
    until_eof: bool = False
    """Bodies end with the connection."""
    done: bool = True
    """Streams end with [DONE]."""
    finish_reason: str | None = None
    """Of an answer that is not streamed."""
    response_id: str = ""
    """Of every answer; empty = it has none."""
    metrics: str = ""
    seen: list[Seen] = field(default_factory=list)
    served: int = 0
    dropped: int = 0
    """Completions whose connection the other side closed first."""
    port: int = 0

    def __post_init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.connections = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> Self:
        """Listen; again on the same port after a stop."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, reuse_address=True)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def kill(self) -> None:
        """Everything at once, as the end of a process."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task, writer in tuple(self._open.items()):
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        self.connections += 1
        try:
            while seen := await _read(reader):
                if not await self._answer(seen, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            del self._open[task]
            writer.close()

    async def _answer(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False = the connection is over."""
        if seen.path.endswith("/health"):
            if self.health_hangs:
                await asyncio.Event().wait()
            _whole(writer, self.health_status, b"")
        elif seen.path.endswith("/metrics"):
            _whole(writer, 200, self.metrics.encode())
        elif seen.path.endswith("/v1/models"):
            _whole(writer, 200, json.dumps({"object": "list", "data": [{"id": self.name}]}).encode())
        elif seen.method == "GET" or seen.path.endswith("tokenize"):
            self.seen.append(seen)
            await asyncio.sleep(self.slow_pages_s)
            _whole(writer, 200, json.dumps({"path": seen.path, "by": self.name}).encode())
        else:
            self.seen.append(seen)
            return await self._complete(seen, reader, writer)
        await writer.drain()
        return True

    async def _complete(self, seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if self.hang:
            await self._wait_for_close(reader)
            return False
        if self.status != 200 and self.errors:
            self.errors -= 1
            _whole(writer, self.status, json.dumps({"error": {"message": self.name}}).encode(), self.answer_headers)
            return True
        answering = asyncio.create_task(self._stream(writer) if seen.json.get("stream") else self._at_once(writer))
        leaving = asyncio.create_task(self._wait_for_close(reader))
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done() or isinstance(answering.exception(), ConnectionError):
                self.dropped += 1
                return False
            return answering.result()
        finally:
            for task in (answering, leaving):
                task.cancel()
            await asyncio.gather(answering, leaving, return_exceptions=True)

    async def _wait_for_close(self, reader: asyncio.StreamReader) -> None:
        """Until the other side closes; what it sends meanwhile is left in the buffer."""
        while not reader.at_eof() and reader.exception() is None:  # noqa: ASYNC110  (reading would eat the next request)
            await asyncio.sleep(0.005)

    async def _stream(self, writer: asyncio.StreamWriter) -> bool:
        self._begin_stream(writer)
        if self.hang_after_head:
            await asyncio.Event().wait()
        await asyncio.sleep(self.ttft_s)
        if self.script:
            return await self._play(writer)
        for number in range(self.tokens):
            if number == self.die_after:
                return self._die(writer)
            text = f" {self.name}{number}{self.padding}"
            self._chunk(writer, {**self._name_answer(), "choices": [{"index": 0, "text": text}]})
            await writer.drain()
            if number == 0 and self.gate is not None:
                await self.gate.wait()
            await asyncio.sleep(self.itl_s)
        if self.die_after >= self.tokens:
            return self._die(writer)
        usage = {"prompt_tokens": 8, "completion_tokens": self.tokens, "prompt_tokens_details": {"cached_tokens": 4}}
        self._chunk(writer, {"choices": [], "usage": usage})
        if self.done:
            self._raw(writer, b"data: [DONE]\n\n")
        self.served += 1
        if self.until_eof:
            await writer.drain()
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    def _begin_stream(self, writer: asyncio.StreamWriter) -> None:
        framing = "connection: close" if self.until_eof else "transfer-encoding: chunked"
        extra = "".join(f"{name}: {value}\r\n" for name, value in self.answer_headers.items())
        writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n{extra}{framing}\r\n\r\n".encode())

    async def _play(self, writer: asyncio.StreamWriter) -> bool:
        for number, event in enumerate(self.script):
            if number == self.die_after:
                return self._die(writer)
            if number == self.gate_at and self.gate is not None:
                await self.gate.wait()
            await asyncio.sleep(self.itl_s)
            self._raw(writer, event)
            await writer.drain()
        self.served += 1
        await asyncio.sleep(self.itl_s)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def _at_once(self, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(self.ttft_s)
        if self.gate is not None:
            await self.gate.wait()
        text = "".join(f" {self.name}{number}" for number in range(self.tokens))
        usage = {"prompt_tokens": 8, "completion_tokens": self.tokens}
        choice = {"index": 0, "text": text, "finish_reason": self.finish_reason}
        answer = {**self._name_answer(), "choices": [choice], "usage": usage}
        body = json.dumps(answer).encode()
        if self.die_after >= 0:
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body[: len(body) // 2])
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.transport.abort()
            return False
        _whole(writer, 200, body, self.answer_headers)
        self.served += 1
        await writer.drain()
        return True

    def _name_answer(self) -> dict[str, str]:
        return {"id": self.response_id} if self.response_id else {}

    def _die(self, writer: asyncio.StreamWriter) -> bool:
        if self.torn:
            writer.write(b'40\r\ndata: {"choices": [{"ind')
        writer.close()
        return False

    def _chunk(self, writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
        self._raw(writer, b"data: " + json.dumps(event).encode() + b"\n\n")

    def _raw(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(data if self.until_eof else b"%x\r\n%b\r\n" % (len(data), data))


def _whole(writer: asyncio.StreamWriter, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    extra = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    head = f"HTTP/1.1 {status} Obeyed\r\ncontent-type: application/json\r\n{extra}content-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


async def _read(reader: asyncio.StreamReader) -> Seen | None:
    with contextlib.suppress(asyncio.IncompleteReadError):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        method, path, _ = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        return Seen(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))
    return None
