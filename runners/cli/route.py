"""`tracon route`: a standalone router."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import typer

import runners.cli.terminal as terminal
from results.records.count import format_count
from results.records.decisions import Role
from results.records.errors import DAMAGED_JSON
from runners.cli.options import ROUTING_PANEL, read_pairs
from runners.cli.spec_options import SpecOption, SpecOptions, chosen, make_command_class
from runners.errors import RunnerError

if TYPE_CHECKING:
    from results.records.router_spec import InstanceSpec, KvEndpoint, Prewarm, RouterSpec
    from runners.router.messages import RouterLine

ROLES = get_args(Role)
SHAPE = "[NAME=]URL[,SETTING=VALUE]"
MOVES = "Moving KV between instances"
PORT = 8080

ROUTER = SpecOptions(
    "results.records.router_spec:RouterSpec",
    (
        SpecOption("policy", "--policy", "Decide by this policy (`tracon policies`), or by one in a Python file"),
        SpecOption("host", "--host", "Listen on this address"),
        SpecOption("port", "--port", "Listen on this port (0 = any free one)", None, 0, str(PORT), 65535),
        SpecOption("decisions_path", "--decisions", "Record every decision in this file (JSONL)", "FILE"),
        SpecOption(
            "processes", "--processes",
            "Run N processes on the one port, on a host with cores to spare; needs --bindings. Each counts only the "
            "load that it sends itself", None, 1,
        ),
        SpecOption(
            "index", "--index", "Track the instances' prefix caches by an `approximate` LRU index or by KV `events`"
        ),
        SpecOption(
            "block_tokens", "--block-tokens", "Set the block size of the index in tokens (0 = ask the engines)", None, 0
        ),
    ),
)  # fmt: skip
TRANSFERS = SpecOptions(
    "results.records.router_spec:TransferRules",
    (
        SpecOption(
            "timeout_s", "--transfer-timeout",
            "Limit one transfer with all its attempts, and a handover from its decode request to the first byte, to "
            "this time; then the target computes the prompt. Choose many times the time of a copy: a transfer also "
            "waits for a busy engine", "SECONDS",
        ),
        SpecOption(
            "attempts", "--transfer-attempts",
            "Try one transfer up to N times: again after a 5xx, never after a refusal or a timeout",
            None, 1,
        ),
        SpecOption(
            "min_tokens", "--transfer-min-tokens",
            "Move no KV if the target lacks fewer of the source's prompt tokens than this: it computes them. Choose "
            "the tokens that a target computes in the time of a prefill and a decode request", None, 1,
        ),
        SpecOption(
            "queue", "--transfer-queue",
            "Let N migrations wait at one target behind the running one; further ones move no KV, and the target "
            "computes. A longer queue moves the KV of more sessions off a hot instance, and each waits longer",
            None, 0,
        ),
        SpecOption(
            "failures_to_quarantine", "--quarantine-failures",
            "Quarantine a pair of instances after N transfers in a row that failed within the window",
            None, 1,
        ),
        SpecOption("window_s", "--quarantine-window", "Count those failures within this time", "SECONDS"),
        SpecOption(
            "quarantine_s", "--quarantine",
            "Use no quarantined pair for this long; then one transfer is tried as a probe. Each failed probe doubles "
            "the time", "SECONDS",
        ),
        SpecOption("quarantine_max_s", "--quarantine-max", "Limit a quarantine to this time", "SECONDS"),
        SpecOption(
            "priority", "--transfer-priority",
            "Send the requests that move a session's KV with this `priority`, e.g. -1, so that they overtake the "
            "prompts waiting at a hot engine. Only for engines started with `--scheduling-policy priority`",
        ),
        SpecOption(
            "count", "--transfer-counts/--no-transfer-counts",
            "Read the target's metrics before and after each transfer, to count the tokens it moved. Turn it off if "
            "that would disturb a measurement; the decision log then has no counts",
        ),
    ),
    MOVES,
)  # fmt: skip
BINDINGS = SpecOptions(
    "results.records.router_spec:BindingRules",
    (
        SpecOption(
            "redis_url", "--bindings",
            "Share the sessions' bindings with other routers through Redis, e.g. redis://127.0.0.1:6379/0 (rediss:// "
            "with TLS, unix:///PATH). Give its password, if any, in the environment variable TRACON_REDIS_PASSWORD",
            "REDIS_URL", default="in this router's memory",
        ),
        SpecOption(
            "prefix", "--bindings-prefix",
            "Begin all keys in Redis with this: routers with the same prefix share their sessions",
        ),
    ),
)  # fmt: skip

InstanceOption = Annotated[
    list[str] | None, typer.Option("--instance", "-i", metavar=SHAPE, help="Route to this instance (repeatable).")
]
PrefillOption = Annotated[
    list[str] | None, typer.Option("--prefill", metavar=SHAPE, help="Route prefills only to it (repeatable).")
]
DecodeOption = Annotated[
    list[str] | None, typer.Option("--decode", metavar=SHAPE, help="Route decodes only to it (repeatable).")
]
SettingOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a parameter of the policy (repeatable).")
]
EventsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kv-events",
        metavar="NAME=ENDPOINT[,REPLAY]",
        help="Read the KV events that an instance publishes at ENDPOINT, missed ones again from REPLAY (repeatable).",
    ),
]
CapacityOption = Annotated[
    int | None,
    typer.Option("--kv-capacity", min=1, help="Assume KV pools of this many tokens each (default: ask the engines)."),
]
TransportOption = Annotated[
    str | None,
    typer.Option(
        "--transfer",
        metavar="mooncake|nixl",
        help="Move KV between the instances by the connector that the engines were started with. Mooncake: give each "
        "instance its bootstrap server, `-i a=URL,bootstrap=http://HOST:PORT`. Without this option nothing is moved: "
        "the instance that serves a request computes it.",
        rich_help_panel=MOVES,
    ),
]
PrewarmOption = Annotated[
    Path | None,
    typer.Option(
        "--prewarm",
        help="Have every instance compute this prompt before the first request (JSON: `model` and `token_ids`, e.g. of "
        "a shared system prompt, as vLLM's `/tokenize` gives them). With kv_aware, prewarm_tokens cuts it.",
    ),
]
ReservedOption = Annotated[
    str,
    typer.Option(
        "--reserved-output",
        metavar="TOKENS|max_tokens",
        help="Reserve this many KV tokens for an answer, besides its prompt, when a policy checks for room "
        "(`max_tokens` = the request's limit).",
    ),
]
SpecPathOption = Annotated[
    Path | None, typer.Option("--spec", help="Read all settings from this router spec (JSON) instead.")
]
LinesOption = Annotated[
    bool, typer.Option("--json", help="Print JSON lines on stdout: ready, a tick per second, the end.")
]


def add_to(app: typer.Typer) -> None:
    app.command(cls=make_command_class(ROUTER, TRANSFERS, BINDINGS), rich_help_panel=ROUTING_PANEL)(route)


def route(
    context: typer.Context,
    instance: InstanceOption = None,
    prefill: PrefillOption = None,
    decode: DecodeOption = None,
    settings: SettingOption = None,
    kv_events: EventsOption = None,
    kv_capacity: CapacityOption = None,
    transfer: TransportOption = None,
    prewarm: PrewarmOption = None,
    reserved_output: ReservedOption = "0",
    spec: SpecPathOption = None,
    json: LinesOption = False,
) -> None:
    """Run a cache-aware streaming router in front of OpenAI-compatible servers, until Ctrl-C.

    Clients send `/v1/completions` and `/v1/chat/completions` to it; the session comes from the header `x-session-id`,
    or from `session_id` or `user` in the body. `/metrics`, `/health` and `/admin/instances` show its state.
    Ctrl-C lets requests in flight finish; twice cuts them.

    An instance is `[NAME=]URL`, and with `--transfer` also `,bootstrap=URL` (Mooncake), `,kv_role=kv_both` (or
    kv_producer, kv_consumer: as its connector was started) and `,kv_bytes_per_token=N` (to count bytes with Mooncake).

    Examples: `tracon route -i http://127.0.0.1:8000 -i http://127.0.0.1:8001 --policy unified`,
    `tracon route -i http://127.0.0.1:8000 --prewarm system-prompt.json`,
    `tracon route -i a=http://10.0.0.1:8000 -i b=http://10.0.0.2:8000 --policy kv_aware --set load_floor_bonus=200
    --decisions decisions.jsonl`, then `tracon why decisions.jsonl REQUEST`,
    `tracon route --transfer mooncake --prefill p=http://127.0.0.1:8000,bootstrap=http://127.0.0.1:8998
    --decode d=http://127.0.0.1:8001,kv_role=kv_consumer --policy static_pd`,
    `tracon route -i a=http://10.0.0.1:8000 -i b=http://10.0.0.2:8000 --bindings redis://10.0.0.3:6379/0`, on each of
    several machines with the same instances, under the same names
    """
    import msgspec

    from results.records.router_spec import BindingRules, RouterSpec, TransferRules
    from runners.router.messages import read_router_spec
    from runners.router.server.serve import serve

    if spec is not None:
        options = read_router_spec(spec)
    else:
        events = read_pairs(kv_events, "--kv-events", "NAME=ENDPOINT[,REPLAY]")
        parameters = read_pairs(settings, "--set", "KEY=VALUE")
        options = RouterSpec(
            instances=_read_instances(
                {"both": instance, "prefill": prefill, "decode": decode}, events, kv_capacity, transfer
            ),
            parameters=parameters,
            prewarm=_read_prewarm(prewarm, parameters),
            reserved_output=_read_reserved(reserved_output),
            transfer=TransferRules(**chosen(context, TRANSFERS)),
            bindings=BindingRules(**chosen(context, BINDINGS)),
            **{"port": PORT, **chosen(context, ROUTER)},
        )
    serve(options, (lambda line: terminal.print_json_line(msgspec.json.encode(line))) if json else _Narrator(options))


def _read_prewarm(path: Path | None, parameters: Mapping[str, str]) -> Prewarm | None:
    """The prompt in the file, cut to the policy's `prewarm_tokens` if that is set."""
    import msgspec

    from results.records.router_spec import Prewarm

    tokens = parameters.get("prewarm_tokens", "0")
    if path is None:
        if tokens != "0":
            raise RunnerError(
                f"prewarm_tokens={tokens}, and no prompt is named",
                remedy="Add --prewarm FILE with `model` and `token_ids`.",
            )
        return None
    try:
        prompt = msgspec.json.decode(path.read_bytes(), type=Prewarm)
    except (OSError, *DAMAGED_JSON) as error:
        raise RunnerError(
            f"--prewarm {path}: {error}", remedy='Give a JSON file such as {"model": "NAME", "token_ids": [1, 2, 3]}.'
        ) from error
    if not prompt.token_ids:
        raise RunnerError(f"--prewarm {path}: token_ids is empty", remedy="Give at least one block of tokens.")
    most = int(tokens) if tokens.isdigit() and tokens != "0" else len(prompt.token_ids)
    return Prewarm(prompt.model, prompt.token_ids[:most])


def _read_reserved(text: str) -> int | Literal["max_tokens"]:
    if text == "max_tokens":
        return "max_tokens"
    if not text.isdigit():
        raise RunnerError(f"--reserved-output {text}", remedy="Give a number of tokens, or max_tokens.")
    return int(text)


class _Narrator:
    """Reports a router on stderr: its start, instances that become unavailable or available, its end."""

    def __init__(self, spec: RouterSpec) -> None:
        self._spec = spec
        self._down: Mapping[str, str] = {}

    def __call__(self, line: RouterLine) -> None:
        from rich.text import Text

        from runners.router.policies import describe_rule

        say = terminal.err().print
        if line.ready is not None:
            names = ", ".join(f"{instance.instance} {instance.url}" for instance in self._spec.instances)
            say(Text.assemble("router ", (line.ready.url, "bold"), f" before {names}"), soft_wrap=True)
            rule = describe_rule(self._spec.policy, self._spec.parameters)
            say(f"policy {rule}", markup=False, soft_wrap=True)
            for number, page in enumerate(line.ready.pages, 1):
                say(f"process {number}: its metrics and admin pages are at {page}", markup=False, soft_wrap=True)
            say(f"blocks of {line.ready.block_tokens} tokens; Ctrl-C ends it")
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
            if end.died:
                died = format_count(end.died, "process", "processes")
                say(f"{died} died and restarted; these numbers lack their counts")
            if end.records_lost:
                say(f"{end.records_lost} decision records were lost: {end.log_error}", markup=False)


def _read_instances(
    by_role: Mapping[str, list[str] | None], events: dict[str, str], kv_capacity: int | None, transport: str | None
) -> tuple[InstanceSpec, ...]:
    """The instances by role, in order; one without a name is called i0, i1, ... (p0 or d0 with a role)."""
    from results.records.router_spec import InstanceSpec

    instances = []
    for role in ROLES:
        for number, text in enumerate(by_role[role] or ()):
            address, *settings = text.split(",")
            name, _, url = address.partition("=") if "=" in address.partition("://")[0] else ("", "", address)
            name = name or f"{'i' if role == 'both' else role[0]}{number}"
            endpoint, _, replay = events.pop(name, "").partition(",")
            transfer = _read_endpoint(name, settings, transport)
            instances.append(
                InstanceSpec(name, url, role, kv_capacity, kv_events=endpoint, kv_replay=replay, transfer=transfer)
            )
    if events:
        raise RunnerError(
            f"--kv-events names {', '.join(sorted(events))}, which is no instance",
            remedy=f"There are: {', '.join(instance.instance for instance in instances) or 'none'}.",
        )
    return tuple(instances)


def _read_endpoint(name: str, settings: Sequence[str], transport: str | None) -> KvEndpoint | None:
    """The instance's KV endpoint, from `--transfer` and the settings after its URL."""
    import msgspec

    from results.records.router_spec import KvEndpoint

    known = [field for field in KvEndpoint.__dataclass_fields__ if field != "transport"]
    values = read_pairs(settings, f"instance {name}:", "SETTING=VALUE")
    wrong = [setting for setting in values if setting not in known]
    if wrong:
        raise RunnerError(
            f"instance {name} has no setting {', '.join(wrong)}",
            remedy=f"Settings behind its URL are {', '.join(known)}, each as `,SETTING=VALUE`.",
        )
    if transport is None:
        if values:
            raise RunnerError(
                f"instance {name} has {', '.join(values)}, and no transport is named",
                remedy="Add --transfer mooncake or --transfer nixl: the connector that the engines were started with.",
            )
        return None
    try:
        return msgspec.convert({"transport": transport, **values}, KvEndpoint, strict=False)
    except msgspec.ValidationError as error:
        raise RunnerError(f"instance {name}: {error}", remedy="Correct that setting behind its URL.") from error
