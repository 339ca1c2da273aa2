"""What the probe needs of vLLM, as a table that is checked against the installed version before anything is installed.

A version is not judged by its number: a hook fits when the method is there with one of the signatures it is known to
have. Known from 0.18.1, 0.22.0, 0.26.0 (read) and 0.32.0 (run). A hook that does not fit costs its own fields only.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from . import __version__

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]
Note = Callable[..., object]

TESTED_VERSIONS = frozenset({"0.32.0"})
"""vLLM releases the probe has been run in; any other whose hooks fit is used and marked `untested_version`."""

ENGINE_FIELDS = (
    "t_ns", "step_id", "step_duration_ns", "build_meta_ns", "num_running", "num_waiting", "prefill_tokens",
    "decode_tokens", "scheduled_requests", "exec_ns", "update_ns", "engine_step_ns", "period_ns",
    "child1_ns", "child2_ns",
)  # fmt: skip
CHILD_FIELDS = ("child1_ns", "child2_ns")
"""The callbacks of the first two connectors inside a MultiConnector: `build_connector_meta` in the engine's ring,
`get_finished` and `start_load_kv` together in a worker's."""
WORKER_FIELDS = ("t_ns", "step_id", "get_finished_ns", "start_load_kv_ns", "wait_for_save_ns", *CHILD_FIELDS)

SCHEDULER = "vllm.v1.core.sched.scheduler"
OUTPUT = "vllm.v1.core.sched.output"
FACTORY = "vllm.distributed.kv_transfer.kv_connector.factory"


@dataclass(frozen=True, slots=True)
class Method:
    """A method of vLLM that is wrapped or called; it fits when its parameter names are one of `signatures`."""

    module: str
    owner: str
    """Its class; empty = it is a function of the module."""
    method: str
    signatures: tuple[tuple[str, ...], ...]
    feeds: tuple[str, ...]
    """Record fields that cannot be measured without it."""
    prefix: bool = False
    """The signature may go on after the names given."""

    @property
    def name(self) -> str:
        return f"{self.owner}.{self.method}" if self.owner else self.method


@dataclass(frozen=True, slots=True)
class Shape:
    """A dataclass of vLLM whose attributes are read."""

    module: str
    owner: str
    attributes: tuple[str, ...]
    feeds: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.owner


SCHEDULE = Method(SCHEDULER, "Scheduler", "schedule", (("self",), ("self", "throttle_prefills")), ENGINE_FIELDS)
UPDATE = Method(
    SCHEDULER, "Scheduler", "update_from_output", (("self", "scheduler_output", "model_runner_output"),),
    ("exec_ns", "update_ns", "engine_step_ns", "period_ns"),
)  # fmt: skip
REQUEST_COUNTS = Method(SCHEDULER, "Scheduler", "get_request_counts", (("self",),), ("num_running", "num_waiting"))
HAS_REQUESTS = Method(SCHEDULER, "Scheduler", "has_requests", (("self",),), ("period_ns",))
SCHEDULER_INIT = Method(SCHEDULER, "Scheduler", "__init__", (("self", "vllm_config"),), (), prefix=True)
SCHEDULER_OUTPUT = Shape(
    OUTPUT, "SchedulerOutput",
    ("scheduled_new_reqs", "scheduled_cached_reqs", "num_scheduled_tokens", "total_num_scheduled_tokens"),
    ("prefill_tokens", "decode_tokens", "scheduled_requests"),
)  # fmt: skip
CACHED_REQUESTS = Shape(
    OUTPUT, "CachedRequestData", ("req_ids", "num_output_tokens"), ("prefill_tokens", "decode_tokens")
)
CREATE_CONNECTOR = Method(
    FACTORY, "KVConnectorFactory", "create_connector", (("config", "role", "kv_cache_config"),),
    ("build_meta_ns", "get_finished_ns", "start_load_kv_ns", "wait_for_save_ns"),
)  # fmt: skip

HOOKS: tuple[Method | Shape, ...] = (
    SCHEDULE, UPDATE, REQUEST_COUNTS, HAS_REQUESTS, SCHEDULER_INIT, SCHEDULER_OUTPUT, CACHED_REQUESTS, CREATE_CONNECTOR,
)  # fmt: skip
ESSENTIAL = frozenset({SCHEDULE.name, UPDATE.name})
"""Without these no step is timed: `step_timing_available` is false."""


@dataclass(frozen=True, slots=True)
class HookCheck:
    """What fits the installed vLLM: `misfits` maps a hook's name to why it does not."""

    vllm: str | None
    misfits: Mapping[str, str]
    hooks: tuple[Method | Shape, ...] = HOOKS

    def fits(self, hook: Method | Shape) -> bool:
        return hook.name not in self.misfits

    @property
    def untested_version(self) -> bool:
        return self.vllm is None or self.vllm.partition("+")[0] not in TESTED_VERSIONS

    @property
    def timing_reason(self) -> str | None:
        """Why steps cannot be timed here, None when they can."""
        return "; ".join(f"{name}: {why}" for name, why in self.misfits.items() if name in ESSENTIAL) or None

    def unavailable(self) -> dict[str, str]:
        """Each field that cannot be measured, with the reason."""
        lost: dict[str, str] = {}
        for hook in self.hooks:
            if hook.name in self.misfits:
                for field in hook.feeds:
                    lost.setdefault(field, f"{hook.name}: {self.misfits[hook.name]}")
        return lost

    def status(
        self, reason: str | None, unavailable: Mapping[str, str], connector_misfits: Mapping[str, str]
    ) -> dict[str, Any]:
        """What the hooks decide of a ring's status; `reason` is why steps cannot be timed, None if they can."""
        fits: dict[str, bool | str] = {hook.name: self.misfits.get(hook.name, True) for hook in self.hooks}
        return {
            "vllm": self.vllm,
            "patches_version": __version__,
            "step_timing_available": reason is None,
            "reason": reason,
            "unavailable": dict(unavailable),
            "untested_version": self.untested_version,
            "hooks": {**fits, **{f"connector.{name}": why for name, why in connector_misfits.items()}},
        }


def check_hooks(hooks: tuple[Method | Shape, ...] = HOOKS) -> HookCheck:
    """Look at the installed vLLM, change nothing."""
    misfits = {hook.name: why for hook in hooks if (why := misfit(hook)) is not None}
    return HookCheck(_read_vllm_version(), misfits, hooks)


def misfit(hook: Method | Shape) -> str | None:
    """Why `hook` does not fit the installed vLLM, None when it does."""
    try:
        module = load(hook.module)
        owner = getattr(module, hook.owner) if hook.owner else module
    except Exception as error:  # noqa: BLE001 - an import of vLLM may fail in any way; each is a reason
        return f"{type(error).__name__}: {error}"
    return _find_shape_misfit(owner, hook) if isinstance(hook, Shape) else find_method_misfit(owner, hook)


def load(module: str) -> ModuleType:
    return importlib.import_module(module)


def replace_on_class(hook: Method, check: HookCheck, wrap: Callable[[Any], Any], mark: str) -> None:
    """Replace a class's method by `wrap(original)` if it fits; once per `mark`, each probe has its own."""
    if check.fits(hook):
        replace_once(getattr(load(hook.module), hook.owner), hook.method, wrap, mark)


def replace_once(owner: object, name: str, wrap: Callable[[Any], Any], mark: str) -> None:
    """Replace a function of a class or module by `wrap(original)`, unless that has been done."""
    original = getattr(owner, name)
    if hasattr(original, mark):
        return
    wrapped = wrap(original)
    setattr(getattr(wrapped, "__func__", wrapped), mark, True)
    setattr(owner, name, wrapped)


def replace_on_instance(instance: object, method: str, arguments: int, wrap: Wrap) -> str | None:
    """Replace one instance's method by `wrap(original)`; returns why that cannot be done, None when it is done.

    Parameter names may differ between connectors, so only the number of positional arguments is checked.
    """
    original = getattr(instance, method, None)
    if original is None:
        return "missing"
    try:
        inspect.signature(original).bind(*(None,) * arguments)
        setattr(instance, method, wrap(original))
    except (TypeError, ValueError, AttributeError) as error:
        return f"not replaceable, called with {arguments} arguments: {error}"
    return None


def list_connector_children(connector: object) -> tuple[object, ...]:
    """The connectors inside a MultiConnector, as many as are timed; empty for any other."""
    children = getattr(connector, "_connectors", None)
    return tuple(children[: len(CHILD_FIELDS)]) if isinstance(children, list) else ()


def surround(before: Note | None = None, after: Note | None = None) -> Wrap:
    """Wrap a method or coroutine method: `before(*arguments)` is called first, `after(result, *arguments)` last.

    They get the arguments by position, however they were passed, and must not raise.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(original)

        def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
            arguments = signature.bind(*args, **kwargs).args if kwargs else args
            if before is not None:
                before(*arguments)
            return arguments

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> object:
            arguments = begin(args, kwargs)
            result = original(*args, **kwargs)
            if after is not None:
                after(result, *arguments)
            return result

        @functools.wraps(original)
        async def call_coroutine(*args: Any, **kwargs: Any) -> object:
            arguments = begin(args, kwargs)
            result = await original(*args, **kwargs)
            if after is not None:
                after(result, *arguments)
            return result

        return call_coroutine if inspect.iscoroutinefunction(original) else call

    return wrap


def find_method_misfit(owner: object, hook: Method) -> str | None:
    """Why `hook` does not fit this class, module, or instance (`self` is then no parameter); None if it does."""
    function = getattr(owner, hook.method, None)
    if not callable(function):
        return "missing"
    try:
        names = tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError) as error:
        return f"no readable signature: {error}"
    for known in hook.signatures:
        if (names[: len(known)] if hook.prefix else names) == known:
            return None
    return f"unknown signature ({', '.join(names)})"


def _find_shape_misfit(owner: object, hook: Shape) -> str | None:
    fields = getattr(owner, "__dataclass_fields__", {})
    missing = [name for name in hook.attributes if name not in fields]
    return f"no attribute {', '.join(missing)}" if missing else None


def _read_vllm_version() -> str | None:
    try:
        return str(load("vllm").__version__)
    except Exception:  # noqa: BLE001 - the version is reported, not needed; None says it is unknown
        return None
