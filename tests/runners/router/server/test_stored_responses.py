"""A response that an instance stores is continued there, whatever the policy would pick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runners.router.server import proxy
from tests.runners.router.routers import by, instances, raw_post, router, until


@pytest.mark.parametrize("stream", [True, False])
async def test_a_stored_response_is_continued_at_its_instance_and_in_its_session(stream: bool, tmp_path: Path) -> None:
    async with instances("a", "b") as both, router(both, "round_robin", folder=tmp_path) as routed:
        for backend in both:
            backend.response_id = f"resp_{backend.name}"
        home = by(await routed.post("s", path="/v1/responses", input="hi", stream=stream))
        more: dict[str, Any] = {"input": "more", "previous_response_id": f"resp_{home}", "stream": stream}
        answers = [await routed.post(path="/v1/responses", **more) for _ in range(3)]
        assert [by(answer) for answer in answers] == [home] * 3
        for record in (await routed.records(4))[1:]:
            assert (record.request.session, record.decision.reason) == ("s", "stored_response")
            assert [one.instance for one in record.decision.candidates if not one.ruled_out] == [home]


async def test_where_its_instance_is_away_the_policy_decides() -> None:
    async with instances("a", "b") as both, router(both, "round_robin") as routed:
        for backend in both:
            backend.response_id = f"resp_{backend.name}"
        home = by(await routed.post(path="/v1/responses", input="hi"))
        await next(backend for backend in both if backend.name == home).kill()
        await until(lambda: home not in routed.available())
        answer = await routed.post(path="/v1/responses", input="more", previous_response_id=f"resp_{home}")
        assert by(answer) != home


async def test_a_large_body_is_read_aside_and_routed_as_any_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(proxy, "LONG_BYTES", 1000)
    async with instances("a") as (a,), router([a], folder=tmp_path) as routed:
        await routed.post("s", prompt=list(range(1000)))
        record = (await routed.records(1))[0]
        assert (record.request.input_tokens, record.request.session, record.request.turn) == (1000, "s", 0)


async def test_a_client_that_leaves_while_its_body_is_read_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with instances("a") as (a,), router([a]) as routed:
        monkeypatch.setattr(proxy, "LONG_BYTES", 10)
        monkeypatch.setattr(proxy, "_read_aside", lambda *_: None)
        _, writer = await routed.connect(raw_post(b'{"prompt": [1, 2, 3]}'))
        traffic = routed.server._traffic
        await until(lambda: bool(traffic.arriving))
        writer.close()
        await until(lambda: not traffic.arriving)
        assert not a.seen
