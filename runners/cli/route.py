"""The command that runs a router by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from results.decisions import Role
from runners.cli import output
from runners.errors import RunnerError

if TYPE_CHECKING:
    from runners.router.spec import InstanceSpec, KvEndpoint, RouterLine, RouterSpec, TransferRules

ROLES = get_args(Role)
SHAPE = "[NAME=]URL[,SETTING=VALUE]"
MOVES = "Moving KV between instances"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(route)


def route(
    instance: Annotated[
        list[str] | None,
        typer.Option("--instance", "-i", metavar=SHAPE, help="An instance behind the router (repeatable)."),
    ] = None,
    prefill: Annotated[
        list[str] | None, typer.Option("--prefill", metavar=SHAPE, help="One that only prefills (repeatable).")
    ] = None,
    decode: Annotated[
        list[str] | None, typer.Option("--decode", metavar=SHAPE, help="One that only decodes (repeatable).")
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
    transfer: Annotated[
        str | None,
        typer.Option(
            "--transfer",
            metavar="mooncake|nixl",
            help="The connector that the engines were started with: KV is moved between them. Mooncake: give each "
            "instance its bootstrap server, `-i a=URL,bootstrap=http://HOST:PORT`. Without this option nothing is "
            "moved, and whoever serves a request computes it.",
            rich_help_panel=MOVES,
        ),
    ] = None,
    transfer_timeout: Annotated[
        float | None,
        typer.Option(
            "--transfer-timeout",
            metavar="SECONDS",
            help="All tries and waits of one transfer, and of a handover once more from its target leg to the first "
            "byte; then the target computes the prompt. Many times what a copy takes: it also waits for a busy engine "
            "(default: 120).",
            rich_help_panel=MOVES,
        ),
    ] = None,
    transfer_attempts: Annotated[
        int | None,
        typer.Option(
            "--transfer-attempts",
            min=1,
            help="Tries of one transfer, where another may help: after a 5xx of a leg, never after a refusal or a "
            "timeout (default: 2).",
            rich_help_panel=MOVES,
        ),
    ] = None,
    min_tokens: Annotated[
        int | None,
        typer.Option(
            "--transfer-min-tokens",
            min=1,
            help="Where the target lacks fewer prompt tokens of what the source holds, nothing is moved, and EAR lets "
            "the session stay. Choose the tokens that a target computes in the time of two legs (default: 1).",
            rich_help_panel=MOVES,
        ),
    ] = None,
    queue: Annotated[
        int | None,
        typer.Option(
            "--transfer-queue",
            min=0,
            help="Migrations that may wait for their turn at one target, behind the one on its way; a policy sends no "
            "more there meanwhile. More of them: more sessions leave a hot instance at once, and each waits longer "
            "(default: 1).",
            rich_help_panel=MOVES,
        ),
    ] = None,
    failures: Annotated[
        int | None,
        typer.Option(
            "--quarantine-failures",
            min=1,
            help="So many failed transfers from one instance to another within the window, no success between, and "
            "none is tried for a while (default: 3).",
            rich_help_panel=MOVES,
        ),
    ] = None,
    window: Annotated[
        float | None,
        typer.Option(
            "--quarantine-window",
            metavar="SECONDS",
            help="That window (default: 60).",
            rich_help_panel=MOVES,
        ),
    ] = None,
    quarantine: Annotated[
        float | None,
        typer.Option(
            "--quarantine",
            metavar="SECONDS",
            help="How long a pair is left alone; then one transfer is tried as a probe, and each probe that fails "
            "doubles the time (default: 10).",
            rich_help_panel=MOVES,
        ),
    ] = None,
    quarantine_max: Annotated[
        float | None,
        typer.Option(
            "--quarantine-max",
            metavar="SECONDS",
            help="It is not doubled beyond this (default: 120).",
            rich_help_panel=MOVES,
        ),
    ] = None,
    leg_priority: Annotated[
        int | None,
        typer.Option(
            "--leg-priority",
            help="`priority` of the requests that move a session's KV, e.g. -1, so that they pass the prompts that "
            "wait at a hot engine. Only for engines started with `--scheduling-policy priority`.",
            rich_help_panel=MOVES,
        ),
    ] = None,
    count: Annotated[
        bool,
        typer.Option(
            "--transfer-counts/--no-transfer-counts",
            help="Read the target's metrics around transfers, to say what each one brought. Without, the decisions say "
            "that nobody counted: for measurements in which no page of metrics may cost an engine time.",
            rich_help_panel=MOVES,
        ),
    ] = True,
    bindings: Annotated[
        str,
        typer.Option(
            "--bindings",
            metavar="REDIS_URL",
            help="Share the sessions' bindings with other routers through Redis, e.g. redis://127.0.0.1:6379/0 "
            "(rediss:// with TLS, unix:///PATH). Its password, if there is one, goes into the environment as "
            "TRACON_REDIS_PASSWORD. Default: in this router's memory.",
        ),
    ] = "",
    bindings_prefix: Annotated[
        str,
        typer.Option("--bindings-prefix", help="Of all keys in Redis: routers with one prefix share their sessions."),
    ] = "tracon:",
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

    An instance is `[NAME=]URL`, and with `--transfer` also `,bootstrap=URL` (Mooncake), `,kv_role=kv_both` (or
    kv_producer, kv_consumer: as its connector was started) and `,kv_bytes_per_token=N` (to count bytes with Mooncake).

    Examples: `tracon route -i http://127.0.0.1:8000 -i http://127.0.0.1:8001 --policy unified`,
    `tracon route -i a=http://10.0.0.1:8000 -i b=http://10.0.0.2:8000 --policy kv_aware --set load_floor_bonus=200
    --decisions decisions.jsonl`, then `tracon why decisions.jsonl REQUEST`,
    `tracon route --transfer mooncake --prefill p=http://127.0.0.1:8000,bootstrap=http://127.0.0.1:8998
    --decode d=http://127.0.0.1:8001,kv_role=kv_consumer --policy static_pd`,
    `tracon route -i a=http://10.0.0.1:8000 -i b=http://10.0.0.2:8000 --bindings redis://10.0.0.3:6379/0`, on each of
    several machines with the same instances, under the same names
    """
    from runners.router.binding_rules import BindingRules
    from runners.router.serve import serve
    from runners.router.spec import RouterSpec, router_spec, to_json

    if spec is not None:
        wanted: RouterSpec = router_spec(spec)
    else:
        events = dict(_pair(text, "--kv-events", "NAME=ENDPOINT[,REPLAY]") for text in kv_events or ())
        wanted = RouterSpec(
            instances=_instances(
                {"both": instance, "prefill": prefill, "decode": decode}, events, kv_capacity, transfer
            ),
            policy=policy,
            parameters=dict(_pair(text, "--set", "KEY=VALUE") for text in settings or ()),
            host=host,
            port=port,
            decisions_path=str(decisions) if decisions else "",
            index=index,
            block_tokens=block_tokens,
            transfer=_rules(
                {
                    "timeout_s": transfer_timeout,
                    "attempts": transfer_attempts,
                    "failures_to_quarantine": failures,
                    "window_s": window,
                    "quarantine_s": quarantine,
                    "quarantine_max_s": quarantine_max,
                    "min_tokens": min_tokens,
                    "queue": queue,
                    "count": count,
                    "leg_priority": leg_priority,
                }
            ),
            bindings=BindingRules(redis_url=bindings, prefix=bindings_prefix),
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
    given: Mapping[str, list[str] | None], events: dict[str, str], kv_capacity: int | None, transport: str | None
) -> tuple[InstanceSpec, ...]:
    """The instances in the order given; without a name they are called i0, i1, ... (p0 and d0 with a role)."""
    from runners.router.spec import InstanceSpec

    found = []
    for role in ROLES:
        for place, text in enumerate(given[role] or ()):
            place_of, *settings = text.split(",")
            name, _, url = place_of.partition("=") if "=" in place_of.partition("://")[0] else ("", "", place_of)
            name = name or f"{'i' if role == 'both' else role[0]}{place}"
            endpoint, _, replay = events.pop(name, "").partition(",")
            moves = _endpoint(name, settings, transport)
            found.append(
                InstanceSpec(name, url, role, kv_capacity, kv_events=endpoint, kv_replay=replay, transfer=moves)
            )
    if events:
        raise RunnerError(
            f"--kv-events names {', '.join(sorted(events))}, which is no instance",
            remedy=f"There are: {', '.join(instance.instance for instance in found) or 'none'}.",
        )
    return tuple(found)


def _rules(given: Mapping[str, float | None]) -> TransferRules:
    """The rules of transfers, by their names there; None = as they are unless told otherwise."""
    from runners.router.spec import TransferRules

    return TransferRules(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]


def _endpoint(name: str, settings: Sequence[str], transport: str | None) -> KvEndpoint | None:
    """How the instance's KV is moved, from `--transfer` and what stands behind its URL."""
    import msgspec

    from runners.router.spec import KvEndpoint

    known = [field for field in KvEndpoint.__dataclass_fields__ if field != "transport"]
    given = dict(_pair(text, f"instance {name}:", "SETTING=VALUE") for text in settings)
    wrong = [setting for setting in given if setting not in known]
    if wrong:
        raise RunnerError(
            f"instance {name} has no setting {', '.join(wrong)}",
            remedy=f"Behind its URL there may be {', '.join(known)}, each as `,SETTING=VALUE`.",
        )
    if transport is None:
        if given:
            raise RunnerError(
                f"instance {name} has {', '.join(given)}, and no transport is named",
                remedy="Add --transfer mooncake or --transfer nixl: the connector that the engines were started with.",
            )
        return None
    try:
        return msgspec.convert({"transport": transport, **given}, KvEndpoint, strict=False)
    except msgspec.ValidationError as error:
        raise RunnerError(f"instance {name}: {error}", remedy="Correct that setting behind its URL.") from error


def _pair(text: str, option: str, shape: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not (key and found):
        raise RunnerError(f"{option} {text!r} is not {shape}", remedy=f"Give it as {shape}.")
    return key, value
