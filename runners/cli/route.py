"""The command that runs a router by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from results.decisions import Role
from runners.cli import output
from runners.errors import RunnerError

if TYPE_CHECKING:
    from runners.router.spec import InstanceSpec, RouterLine, RouterSpec

ROLES = get_args(Role)


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(route)


def route(
    instance: Annotated[
        list[str] | None,
        typer.Option("--instance", "-i", metavar="[NAME=]URL", help="An instance behind the router (repeatable)."),
    ] = None,
    prefill: Annotated[
        list[str] | None, typer.Option("--prefill", metavar="[NAME=]URL", help="One that only prefills (repeatable).")
    ] = None,
    decode: Annotated[
        list[str] | None, typer.Option("--decode", metavar="[NAME=]URL", help="One that only decodes (repeatable).")
    ] = None,
    policy: Annotated[
        str, typer.Option("--policy", help="A policy (`tracon policies`), or a Python file with one.")
    ] = "unified",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the policy (repeatable).")
    ] = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0 = any free one.")] = 8080,
    decisions: Annotated[
        Path | None, typer.Option("--decisions", help="Keep a record of every decision in this file (JSONL).")
    ] = None,
    index: Annotated[
        str, typer.Option("--index", help="What instances hold: `approximate` (own LRU index) or `events`.")
    ] = "approximate",
    kv_events: Annotated[
        list[str] | None,
        typer.Option(
            "--kv-events",
            metavar="NAME=ENDPOINT[,REPLAY]",
            help="Where an instance publishes its KV events, and replays what was missed (repeatable).",
        ),
    ] = None,
    block_tokens: Annotated[
        int, typer.Option("--block-tokens", min=0, help="Block size of the index; 0 = ask the engines.")
    ] = 0,
    kv_capacity: Annotated[
        int | None, typer.Option("--kv-capacity", min=1, help="Tokens each KV cache holds (default: ask the engines).")
    ] = None,
    spec: Annotated[
        Path | None, typer.Option("--spec", help="Take everything from this router spec (JSON) instead.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines on stdout: ready, a tick a second, the end.")
    ] = False,
) -> None:
    """Put a cache-aware streaming router before OpenAI-compatible servers, until Ctrl-C.

    Clients send `/v1/completions` and `/v1/chat/completions` to it; the session comes from the header `x-session-id`,
    or from `session_id` or `user` in the body. `/metrics`, `/health` and `/admin/instances` say how it is doing.
    Ctrl-C lets requests in flight finish; twice cuts them.

    Examples: `tracon route -i http://127.0.0.1:8000 -i http://127.0.0.1:8001 --policy unified`,
    `tracon route -i a=http://10.0.0.1:8000 -i b=http://10.0.0.2:8000 --policy kv_aware --set load_floor_bonus=200
    --decisions decisions.jsonl`, then `tracon why decisions.jsonl REQUEST`
    """
    from runners.router.serve import serve
    from runners.router.spec import RouterSpec, router_spec, to_json

    if spec is not None:
        wanted: RouterSpec = router_spec(spec)
    else:
        events = dict(_pair(text, "--kv-events", "NAME=ENDPOINT[,REPLAY]") for text in kv_events or ())
        wanted = RouterSpec(
            instances=_instances({"both": instance, "prefill": prefill, "decode": decode}, events, kv_capacity),
            policy=policy,
            parameters=dict(_pair(text, "--set", "KEY=VALUE") for text in settings or ()),
            host=host,
            port=port,
            decisions_path=str(decisions) if decisions else "",
            index=index,
            block_tokens=block_tokens,
        )

    narrate = _Narrator(wanted)
    serve(wanted, (lambda line: typer.echo(to_json(line).decode())) if json else narrate)


class _Narrator:
    """Tells a person on stderr what becomes of a router: its start, instances that come and go, its end."""

    def __init__(self, spec: RouterSpec) -> None:
        self._spec = spec
        self._down: Mapping[str, str] = {}

    def __call__(self, line: RouterLine) -> None:
        say = output.err().print
        if line.ready is not None:
            names = ", ".join(f"{instance.instance} {instance.url}" for instance in self._spec.instances)
            say(f"router [bold]{line.ready.url}[/] before {names}", soft_wrap=True)
            say(f"policy {self._spec.policy}, blocks of {line.ready.block_tokens} tokens; Ctrl-C ends it")
        elif line.tick is not None:
            down = {row.instance: row.why for row in line.tick.instances if not row.available}
            for instance in sorted({*down, *self._down}):
                if down.get(instance) != self._down.get(instance):
                    state = f"is not picked: {down[instance]}" if instance in down else "is picked again"
                    say(f"{instance} {state}", markup=False, soft_wrap=True)
            self._down = down
        elif line.end is not None:
            end = line.end
            say(
                f"{end.requests} requests, {end.retries} retried, {end.errors} failed, "
                f"{end.aborted} left by their clients, {end.cut} cut"
            )
            if end.records_lost:
                say(f"{end.records_lost} decision records were lost: {end.log_error}")


def _instances(
    given: Mapping[str, list[str] | None], events: dict[str, str], kv_capacity: int | None
) -> tuple[InstanceSpec, ...]:
    """The instances in the order given; without a name they are called i0, i1, ... (p0 and d0 with a role)."""
    from runners.router.spec import InstanceSpec

    found = []
    for role in ROLES:
        for place, text in enumerate(given[role] or ()):
            name, _, url = text.partition("=") if "=" in text.partition("://")[0] else ("", "", text)
            name = name or f"{'i' if role == 'both' else role[0]}{place}"
            endpoint, _, replay = events.pop(name, "").partition(",")
            found.append(InstanceSpec(name, url, role, kv_capacity, kv_events=endpoint, kv_replay=replay))
    if events:
        raise RunnerError(
            f"--kv-events names {', '.join(sorted(events))}, which is no instance",
            remedy=f"There are: {', '.join(instance.instance for instance in found) or 'none'}.",
        )
    return tuple(found)


def _pair(text: str, option: str, shape: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not (key and found):
        raise RunnerError(f"{option} {text!r} is not {shape}", remedy=f"Give it as {shape}.")
    return key, value
