"""A streaming completion server whose true times are known, for golden tests of the meter.

It stamps what it receives and what it writes on the clock the client stamps with (CLOCK_MONOTONIC), so the truth of
every request can be compared with what the client says about it. Run by `TruthServer` in a process of its own, on the
plain asyncio loop, which hands a write to the kernel at once (uvloop waits for the end of its round).

How it behaves is in the path: `/ttft_ms=20,itl_ms=5,role_ms=10/v1/completions`; see `Scenario`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from dataclasses import astuple, dataclass, field
from itertools import accumulate
from time import perf_counter_ns
from typing import Any, Self
from urllib.request import urlopen


@dataclass(frozen=True, slots=True)
class Scenario:
    """How a request is answered. Times in milliseconds; -1 = never."""

    ttft_ms: float = 20.0
    itl_ms: float = 2.0
    tokens: int = 0
    """0 = as many as `max_tokens` asks for."""
    per_chunk: int = 1
    """Tokens in a chunk."""
    role_ms: float = -1.0
    """Seconds from the request to a role-only chat chunk, before the first token."""
    chat: int = 0
    """Deltas instead of text."""
    empty_text: int = 0
    """Every n-th token has an empty text (its id is there)."""
    ids: int = 1
    """Send token_ids, as return_token_ids asks."""
    usage: int = 1
    """A last chunk with the token counts."""
    running: int = 0
    """The counts so far in every chunk, as continuous_usage_stats asks."""
    merge: int = 1
    """Events per write."""
    split_ms: float = -1.0
    """Every event in two writes, so far apart."""
    crlf: int = 0
    comments: int = 0
    stall_after: int = -1
    """Chunks before it falls silent for ever."""
    drop_after: int = -1
    """Chunks before it drops the connection."""
    error_after: int = -1
    """Chunks before an error event and [DONE]."""
    abort_after: int = -1
    """Chunks before it ends early with finish_reason abort."""
    garbage_after: int = -1
    """Chunks before an event that is no JSON."""
    bad_framing_after: int = -1
    """Chunks before a chunk size that is no number."""
    drop: int = 0
    """Drop the connection before any byte."""
    drop_headers: int = 0
    """Drop it in the middle of the response's head."""
    stale: int = 0
    """Drop a connection that carried a response before, as a server whose keep-alive ran out."""
    close: int = 0
    """Connection: close after every response."""
    until_eof: int = 0
    """A body that ends with the connection instead of chunks."""
    no_done: int = 0
    not_http: int = 0
    status: int = 200
    instance: int = 0
    """Names itself in the response's head, as a router does for the instance that answered; 0 = it does not."""
    refuse: int = -1
    """Only the request whose id ends in this number is answered with `status`; -1 = every one."""


@dataclass(slots=True)
class Truth:
    """What really happened to one request; times are perf_counter_ns of the server."""

    request_id: str
    t_recv_ns: int
    """The read that completed the request."""
    t_writes_ns: list[int] = field(default_factory=list)
    """Just before each chunk that carries a token, or the part that completes it, was handed to the kernel."""
    tokens: int = 0
    prompt: list[int] = field(default_factory=list)
    max_tokens: int = 0
    session: str = ""
    """The request's x-session-id."""

    @property
    def ttft_s(self) -> float:
        return (self.t_writes_ns[0] - self.t_recv_ns) / 1e9

    @property
    def e2e_s(self) -> float:
        return (self.t_writes_ns[-1] - self.t_recv_ns) / 1e9

    @property
    def tpot_s(self) -> float:
        return (self.t_writes_ns[-1] - self.t_writes_ns[0]) / 1e9 / (self.tokens - 1)


class _Connection(asyncio.Protocol):
    def __init__(self, server: _Server) -> None:
        self._server = server
        self._buffer = b""
        self._task: asyncio.Task[None] | None = None
        self._served = 0
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server.connections += 1

    def data_received(self, data: bytes) -> None:
        t_ns = perf_counter_ns()
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])
        }
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        method, path, _ = lines[0].split(" ")
        if method == "GET":
            self._get(path)
            return
        body = json.loads(rest[:length])
        truth = Truth(
            headers.get("x-request-id", ""),
            t_ns,
            prompt=body.get("prompt", []),
            max_tokens=body.get("max_tokens", 16),
            session=headers.get("x-session-id", ""),
        )
        self._server.truths.append(truth)
        self._task = asyncio.get_running_loop().create_task(self._answer(_scenario(path), truth))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()

    def _get(self, path: str) -> None:
        body = self._server.page(path)
        status = "200 OK" if body is not None else "404 Not Found"
        data = (body or "").encode()
        self.transport.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)

    async def _answer(self, scenario: Scenario, truth: Truth) -> None:
        self._served += 1
        if scenario.drop or (scenario.stale and self._served > 1):
            self.transport.abort()
        elif scenario.drop_headers:
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/ev")
            self.transport.close()
        elif scenario.not_http:
            self.transport.write(b"SSH-2.0-OpenSSH_9.9\r\n")
        elif scenario.status != 200 and _is_meant(scenario, truth):
            self._refuse(scenario)
        else:
            self._server.inflight += 1
            try:
                await self._stream(scenario, truth)
            finally:
                self._server.inflight -= 1

    def _refuse(self, scenario: Scenario) -> None:
        body = json.dumps({"error": {"message": f"asked for {scenario.status}", "code": scenario.status}}).encode()
        head = f"HTTP/1.1 {scenario.status} No\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)

    async def _stream(self, scenario: Scenario, truth: Truth) -> None:
        framing = "connection: close" if scenario.until_eof else "transfer-encoding: chunked"
        closing = "connection: close\r\n" if scenario.close and not scenario.until_eof else ""
        named = f"X-Tracon-Instance: i{scenario.instance}\r\n" if scenario.instance else ""
        head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n{named}{closing}{framing}\r\n\r\n"
        self.transport.write(head.encode())
        if scenario.role_ms >= 0:
            await asyncio.sleep(scenario.role_ms / 1e3)
            self._write(scenario, _event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}))
        await _until(truth.t_recv_ns, scenario.ttft_ms)
        if await self._tokens(scenario, truth):
            self._end(scenario, truth)

    async def _tokens(self, scenario: Scenario, truth: Truth) -> bool:
        """Write the token chunks; False where the scenario ends the response in its own way."""
        wanted, t_first_ns, merged = scenario.tokens or truth.max_tokens, perf_counter_ns(), []
        chunks = -(-wanted // scenario.per_chunk)
        for number in range(chunks):
            if self._misbehaves(scenario, number):
                return scenario.error_after == number
            if scenario.stall_after == number:
                await asyncio.Event().wait()
            count = min(scenario.per_chunk, wanted - truth.tokens)
            last = number + 1 == chunks
            merged.append(_event(_chunk(scenario, truth.tokens, count, last)))
            truth.tokens += count
            if len(merged) < scenario.merge and not last:
                continue
            await _until(t_first_ns, scenario.itl_ms * number)
            await self._write_tokens(scenario, truth, merged)
            merged = []
        return True

    def _misbehaves(self, scenario: Scenario, number: int) -> bool:
        if scenario.drop_after == number:
            self.transport.close()
        elif scenario.error_after == number:
            self._write(scenario, _event({"error": {"message": "the engine is dead", "code": 500}}))
        elif scenario.abort_after == number:
            self._write(scenario, _event({"choices": [{"index": 0, "text": "", "finish_reason": "abort"}]}))
            self._end(scenario, None)
        elif scenario.garbage_after == number:
            self._write(scenario, b'data: {"choices": [{"te\n\n')
        elif scenario.bad_framing_after == number:
            self.transport.write(b"zz\r\n")
        else:
            return False
        return True

    async def _write_tokens(self, scenario: Scenario, truth: Truth, events: list[bytes]) -> None:
        if scenario.comments:
            events = [b": still here\n\nevent: token\n" + event for event in events]
        data, whole = b"".join(events), 0
        if scenario.split_ms >= 0:
            half = len(data) // 2
            whole = sum(end <= half for end in accumulate(len(event) for event in events))
            truth.t_writes_ns.extend([perf_counter_ns()] * whole)
            self._write(scenario, data[:half])
            await asyncio.sleep(scenario.split_ms / 1e3)
            data = data[half:]
        truth.t_writes_ns.extend([perf_counter_ns()] * (len(events) - whole))
        self._server.chunks += len(events)
        self._write(scenario, data)

    def _end(self, scenario: Scenario, truth: Truth | None) -> None:
        data = b"" if scenario.no_done else b"data: [DONE]\n\n"
        if scenario.usage and truth is not None:
            usage = {"prompt_tokens": len(truth.prompt), "completion_tokens": truth.tokens}
            data = _event({"choices": [], "usage": usage}) + data
        if data:
            self._write(scenario, data)
        if scenario.until_eof:
            self.transport.close()
            return
        self.transport.write(b"0\r\n\r\n")
        if scenario.close:
            self.transport.close()

    def _write(self, scenario: Scenario, data: bytes) -> None:
        if scenario.crlf:
            data = data.replace(b"\n", b"\r\n")
        self.transport.write(data if scenario.until_eof else b"%x\r\n%b\r\n" % (len(data), data))


class _Server:
    def __init__(self) -> None:
        self.truths: list[Truth] = []
        self.connections = 0
        self.chunks = 0
        self.inflight = 0

    def page(self, path: str) -> str | None:
        if path == "/truth":
            rows = [astuple(truth) for truth in self.truths]
            self.truths.clear()
            return json.dumps({"rows": rows})
        if path == "/connections":
            return json.dumps({"connections": self.connections})
        if path.endswith("/health"):
            return ""
        if path.endswith("/v1/models"):
            return json.dumps({"object": "list", "data": [{"id": "m", "object": "model", "max_model_len": 131072}]})
        if path.endswith("/metrics") and path.count("/") <= 2:
            return _METRICS.format(running=self.inflight, chunks=self.chunks)
        return None


_METRICS = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="m"}} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="m"}} 0.25
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{{engine="0",model_name="m"}} {chunks}
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="length",model_name="m"}} 3.0
# TYPE vllm:e2e_request_latency_seconds histogram
vllm:e2e_request_latency_seconds_bucket{{engine="0",le="0.3",model_name="m"}} 2.0
vllm:e2e_request_latency_seconds_bucket{{engine="0",le="+Inf",model_name="m"}} 3.0
vllm:e2e_request_latency_seconds_count{{engine="0",model_name="m"}} 3.0
vllm:e2e_request_latency_seconds_sum{{engine="0",model_name="m"}} 0.75
"""


def _scenario(path: str) -> Scenario:
    segment = path.split("/")[1]
    pairs = (pair.partition("=") for pair in segment.split(",") if "=" in pair)
    kinds = {"ttft_ms", "itl_ms", "role_ms", "split_ms"}
    return Scenario(**{key: float(value) if key in kinds else int(value) for key, _, value in pairs})  # type: ignore[arg-type]


def _is_meant(scenario: Scenario, truth: Truth) -> bool:
    """Whether the request gets the scenario's status."""
    return scenario.refuse < 0 or truth.request_id.endswith(f"-{scenario.refuse}")


def _event(body: dict[str, Any]) -> bytes:
    return (
        b"data: " + json.dumps({"id": "cmpl-0", "object": "text_completion", "model": "m", **body}).encode() + b"\n\n"
    )


def _chunk(scenario: Scenario, first: int, count: int, last: bool) -> dict[str, Any]:
    text = "".join(
        "" if scenario.empty_text and (first + k) % scenario.empty_text == 0 else " the" for k in range(count)
    )
    choice: dict[str, Any] = {"index": 0, "finish_reason": "length" if last else None}
    if scenario.chat:
        choice["delta"] = {"content": text}
    else:
        choice["text"] = text
    if scenario.ids:
        choice["token_ids"] = [(first + k) % 250 + 1 for k in range(count)]
    running = {"usage": {"prompt_tokens": 1, "completion_tokens": first + count}} if scenario.running else {}
    return {"choices": [choice], **running}


async def _until(t_from_ns: int, after_ms: float) -> None:
    await asyncio.sleep(max(0.0, (t_from_ns - perf_counter_ns()) / 1e9 + after_ms / 1e3))


async def _serve() -> None:
    server = _Server()
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: _Connection(server), "127.0.0.1", 0, backlog=1024)
    sys.stdout.write(f"{listening.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()


class TruthServer:
    """The server in a process of its own, for the length of a `with` block; it ends with the test that started it."""

    def __init__(self) -> None:
        self.port = 0
        self._process: subprocess.Popen[str]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.truth_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> None:
        """End the server: nothing answers on its port any more."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def url(self, **scenario: float) -> str:
        """Base URL of a server that behaves so (the fields of Scenario)."""
        segment = ",".join(f"{key}={value}" for key, value in scenario.items())
        return f"http://127.0.0.1:{self.port}" + (f"/{segment}" if segment else "")

    def take(self) -> dict[int, Truth]:
        """The truth of every request since the last call, by the index at the end of its request id."""
        return {int(truth.request_id.rpartition("-")[2]): truth for truth in self.take_rows()}

    def take_rows(self) -> list[Truth]:
        """The truth of every request since the last call, in order of arrival; a request sent twice has two rows."""
        return [Truth(*row) for row in self._ask("/truth")["rows"]]

    def connections(self) -> int:
        """How many were accepted so far, this question's own included."""
        return int(self._ask("/connections")["connections"])

    def _ask(self, path: str) -> dict[str, Any]:
        with urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
        return found


if __name__ == "__main__":
    asyncio.run(_serve())
