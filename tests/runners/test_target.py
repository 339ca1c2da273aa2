"""The server behind a base URL, or a refusal that names the URL."""

from __future__ import annotations

import pytest

from runners.errors import RunnerError
from runners.target import resolve_target


async def test_a_target_is_an_address_and_what_a_request_names() -> None:
    target = await resolve_target("http://127.0.0.1:8000/base/", RunnerError)
    assert (target.address, target.port, target.host) == ("127.0.0.1", 8000, "127.0.0.1:8000")
    assert target.head("GET", b"/v1/models", b"", 0).startswith(b"GET /base/v1/models HTTP/1.1\r\n")
    assert (await resolve_target("https://127.0.0.1", RunnerError)).port == 443


@pytest.mark.parametrize("url", ["http://h:99999", "http://h:port", "http://[h", "http://a..b", "http://\u00e4..b"])
async def test_what_is_no_url_is_refused_by_name(url: str) -> None:
    with pytest.raises(RunnerError) as refused:
        await resolve_target(url, RunnerError)
    assert url in str(refused.value)
    assert refused.value.remedy
