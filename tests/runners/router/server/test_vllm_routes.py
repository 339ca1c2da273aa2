"""Every route of the vLLM in the engine environment is routed, passed on, answered here, or refused with a reason."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.environment import find_engine
from launch.errors import LaunchError
from runners.router.server.paths import HEALTH, PASSED_ON, ROUTED, explain_not_passed_on

OTHER_PROGRAMS = ("launchers/dp_supervisor.py", "cli/preload.py")
"""Servers of their own, none of which is an engine."""
METHODS = {"get": "GET", "post": "POST", "put": "PUT", "delete": "DELETE", "websocket": "GET", "add_api_route": "POST"}


def routes_in(source: str) -> Iterator[tuple[str, str]]:
    """Method and path of each route that a module adds to its router or app."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        method, path = METHODS.get(node.func.attr), node.args[0]
        if method and isinstance(path, ast.Constant) and str(path.value).startswith("/"):
            yield method, str(path.value)


def routes_of_vllm() -> set[tuple[str, str]]:
    try:
        folder = find_engine("cpu").site_packages / "vllm" / "entrypoints"
    except LaunchError as error:
        pytest.skip(f"there is no engine environment to compare with: {error}")
    modules = [path for path in folder.rglob("*.py") if not str(path).endswith(OTHER_PROGRAMS)]
    return {route for path in modules for route in routes_in(path.read_text(encoding="utf-8"))}


def test_routes_are_read_from_decorators_and_calls() -> None:
    source = '@router.post("/a", x=1)\ndef a(): ...\nrouter.add_api_route("/b", a)\nheaders.get("c")\n'
    assert set(routes_in(source)) == {("POST", "/a"), ("POST", "/b")}


def test_no_route_of_vllm_is_unknown_here() -> None:
    routes = routes_of_vllm()
    assert len(routes) > 50
    assert {("POST", "/v1/chat/completions"), ("GET", "/v1/models"), ("GET", "/v1/realtime")} <= routes
    unknown = [
        (method, path)
        for method, path in sorted(routes)
        if not (method == "POST" and path in ROUTED)
        and (method, path) not in PASSED_ON
        and path not in HEALTH
        and explain_not_passed_on(method, path)[0] == 404
    ]
    assert unknown == []


def test_no_route_here_is_unknown_to_vllm() -> None:
    routes = routes_of_vllm()
    assert {("POST", path) for path in ROUTED} <= routes
    assert routes >= PASSED_ON


def test_what_is_refused_has_a_sentence_and_a_status() -> None:
    for method, path in (("POST", "/sleep"), ("GET", "/docs"), ("GET", "/v1/realtime"), ("POST", "/abort_requests")):
        status, why = explain_not_passed_on(method, path)
        assert status == 501
        assert Path(path).name not in why
        assert "address" in why
