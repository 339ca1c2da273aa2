"""Profiles (model, hardware, scale) and configs (which KV connector, how): data, validated, no code."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from launch.errors import LaunchError

PROFILES_FOLDER = Path(__file__).with_name("profiles")
CONFIGS_FOLDER = Path(__file__).with_name("configs")

Kind = Literal["cpu", "cuda"]
Need = Literal["patches", "mooncake", "nixl", "lmcache"]
Proof = Literal["store_and_retrieve", "self_transfer", "peer_transfer", "prefill_request", "bootstrap_query"]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
Share = Annotated[float, msgspec.Meta(gt=0, le=1)]


class ProfileError(LaunchError):
    """A profile or config is missing, is no TOML, or says something that is not known."""


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is served."""

    source: str
    """`builtin:NAME` (launch/builtin_models.py), a Hugging Face id, or a folder."""
    served_name: str
    vocab_low: Annotated[int, msgspec.Meta(ge=0)]
    vocab_high: Positive
    """Random prompts draw their token ids from [vocab_low, vocab_high)."""


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The serving program's arguments and environment."""

    kind: Kind
    max_model_len: Positive
    max_num_batched_tokens: Positive
    tensor_parallel_size: Positive = 1
    load_format: str = "auto"
    enforce_eager: bool = False
    prefix_caching: bool = True
    chunked_prefill: bool = True
    gpu_memory_utilization: Share | None = None
    kv_cache_memory_bytes: Positive | None = None
    block_size: Positive | None = None
    """Tokens of a KV cache block; None = vLLM's choice (128 on a CPU, where it must be a multiple of 32)."""
    extra_args: tuple[str, ...] = ()
    env: dict[str, str] = {}


class LaunchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an engine is started, awaited and ended."""

    method: Literal["spawn", "fork_server"]
    executor: Literal["", "uni", "mp"]
    """"" leaves the choice to vLLM; `uni` puts the worker into the engine process, `mp` into one of its own."""
    ready_timeout_s: Seconds
    stop_grace_s: Seconds
    release_wait_s: Seconds
    """After the engine is gone, until the memory of its GPUs is free, at most; after a CPU engine all of it."""
    port_base: Port
    cold_start_s: Seconds | UnsetType = UNSET
    """An engine's first start on a host, with nothing compiled yet, for the time estimate; UNSET = as any other. Later
    starts find weights in the page cache and compiled kernels on disk."""


class Capacity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the hardware cannot exceed with this model, whatever the config; for warnings and time estimates only."""

    tokens_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    """Tokens computed per second, prompt and output together; None = not known."""
    source: str = ""
    """How the number comes about."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model on some hardware at some scale."""

    name: str
    description: str
    model: Model
    engine: EngineSettings
    launch: LaunchSettings
    capacity: Capacity = Capacity()
    experiments: dict[str, dict[str, dict[str, Any]]] = msgspec.field(name="experiment", default_factory=dict)
    """Raw tables [experiment.<experiment>.<preset>]; each experiment validates its own."""


class Override(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one kind of engine needs beyond, or instead of, the general part of a config."""

    requires: tuple[Need, ...] = ()
    kv_transfer: dict[str, Any] = {}
    env: dict[str, str] = {}


class PreflightSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a fresh engine of the config must manage before it is measured."""

    requests: Positive = 5
    """Sent one after the other, random content."""
    max_tokens: Positive = 32
    limit_s: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """All of them must be complete within this."""
    proofs: tuple[Proof, ...] = ()
    """How the connector shows that it does its work; see launch/preflight_proofs.py."""
    env: dict[str, str] = {}
    """Set for the pre-flight launch only, never for a measured one."""


class ConnectorConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A named engine configuration: which KV connector, in which role, with which settings."""

    name: str
    title: str
    why: str
    requires: tuple[Need, ...] = ()
    kv_transfer: dict[str, Any] | None = None
    """The JSON of --kv-transfer-config; None = no connector."""
    loaded_as: tuple[str, ...] = ()
    """Classes that may stand for it in the engine's log; empty = the connector's own name only."""
    ports: tuple[str, ...] = ()
    """Environment variables that each take one free port, e.g. VLLM_NIXL_SIDE_CHANNEL_PORT."""
    env: dict[str, str] = {}
    cpu: Override = Override()
    cuda: Override = Override()
    preflight: PreflightSettings = PreflightSettings()

    def override(self, kind: Kind) -> Override:
        return self.cpu if kind == "cpu" else self.cuda

    def requires_on(self, kind: Kind) -> tuple[Need, ...]:
        """What must be installed for it on this kind of engine."""
        return tuple(dict.fromkeys((*self.requires, *self.override(kind).requires)))

    def merge_kv_transfer(self, kind: Kind) -> dict[str, Any] | None:
        """The JSON of --kv-transfer-config on this kind of engine; tables merge, the override's values win."""
        if self.kv_transfer is None:
            return None
        return merge_tables(self.kv_transfer, self.override(kind).kv_transfer)

    def merge_env(self, kind: Kind) -> dict[str, str]:
        return {**self.env, **self.override(kind).env}

    @property
    def connectors(self) -> tuple[str, ...]:
        """Class names of which the engine must load one; empty = it must load none."""
        return self.loaded_as or (() if self.kv_transfer is None else (str(self.kv_transfer["kv_connector"]),))


def list_profile_names() -> tuple[str, ...]:
    return _list_names(PROFILES_FOLDER)


def list_config_names() -> tuple[str, ...]:
    return _list_names(CONFIGS_FOLDER)


def load_profile(name_or_path: str | Path) -> Profile:
    """The profile of that name, or in that TOML file. Raises ProfileError."""
    path = _locate_file(name_or_path, PROFILES_FOLDER, "profile")
    profile = _decode_file(path, Profile)
    if profile.engine.kind == "cuda" and profile.launch.method == "fork_server":
        raise _make_error(path, "launch.method", '"fork_server" cannot start a cuda engine', 'write method = "spawn"')
    if profile.launch.cold_start_s is not UNSET and profile.launch.cold_start_s >= profile.launch.ready_timeout_s:
        problem = "leaves no time beyond launch.cold_start_s"
        raise _make_error(path, "launch.ready_timeout_s", problem, "raise it: an engine that is not ready by then ends")
    if profile.model.vocab_low >= profile.model.vocab_high:
        raise _make_error(path, "model.vocab_low", "is not below model.vocab_high", "swap or widen the two")
    return profile


def load_config(name_or_path: str | Path) -> ConnectorConfig:
    """The config of that name, or in that TOML file. Raises ProfileError."""
    path = _locate_file(name_or_path, CONFIGS_FOLDER, "config")
    config = _decode_file(path, ConnectorConfig)
    if config.kv_transfer is not None and not isinstance(config.kv_transfer.get("kv_connector"), str):
        raise _make_error(path, "kv_transfer.kv_connector", "is missing", "name the connector's class")
    return config


def merge_tables(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the changes of `over`: tables merge, every other value replaces."""
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merge_tables(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _list_names(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


def _locate_file(name_or_path: str | Path, folder: Path, what: str) -> Path:
    text = str(name_or_path)
    if text.endswith(".toml") or "/" in text:
        path = Path(text).expanduser()
        if not path.is_file():
            raise ProfileError(
                f"there is no {what} file {path}",
                remedy=f"give an existing file, or one of: {', '.join(_list_names(folder))}",
            )
        return path
    if text not in _list_names(folder):
        near = difflib.get_close_matches(text, _list_names(folder), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ProfileError(
            f"there is no {what} called {text!r}",
            remedy=f"{hint}known: {', '.join(_list_names(folder))}; name a file of your own by its path (NAME.toml)",
        )
    return folder / f"{text}.toml"


_Decoded = TypeVar("_Decoded", Profile, ConnectorConfig)


def _decode_file(path: Path, into: type[_Decoded]) -> _Decoded:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(
            f"{path} cannot be read: {error}", remedy="check the file's rights and encoding (UTF-8)"
        ) from error
    try:
        return msgspec.toml.decode(text, type=into)
    except msgspec.ValidationError as error:
        raise _explain_error(path, str(error), into) from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ProfileError(f"{path} is not valid TOML: {error}", remedy="correct that place in the file") from error


def _explain_error(path: Path, message: str, into: type[Any]) -> ProfileError:
    """msgspec's message turned into file, dotted key, and what would be valid there."""
    problem, _, where = message.partition(" - at `$")
    place = where.rstrip("`").lstrip(".")
    unknown = re.match(r"Object contains unknown field `(.*)`", problem)
    missing = re.match(r"Object missing required field `(.*)`", problem)
    fields = _list_keys(into, place)
    if unknown:
        key, nearest = unknown[1], difflib.get_close_matches(unknown[1], fields, n=1, cutoff=0.5)
        remedy = f"did you mean {_join_key(place, nearest[0])}? " if nearest else ""
        return _make_error(
            path, _join_key(place, key), "is not a known key", f"{remedy}valid here: {', '.join(fields)}"
        )
    if missing:
        return _make_error(path, _join_key(place, missing[1]), "is missing", "add it")
    invalid = re.match(r"Invalid enum value '?(.*?)'?$", problem)
    if invalid:
        choices = [str(value) for value in _list_literals(_find_type(into, place))]
        nearest = difflib.get_close_matches(invalid[1], choices, n=1)
        remedy = f"did you mean {nearest[0]!r}? " if nearest else ""
        return _make_error(path, place, f"cannot be {invalid[1]!r}", f"{remedy}valid: {', '.join(map(repr, choices))}")
    return _make_error(path, place or "the file", f"is wrong: {problem[:1].lower()}{problem[1:]}", "correct the value")


def _make_error(path: Path, key: str, what: str, remedy: str) -> ProfileError:
    return ProfileError(f"{path}: {key} {what}", remedy=remedy)


def _join_key(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _find_type(into: object, place: str) -> object:
    """The annotated type at a dotted place; Any where it leaves the known structure."""
    current = into
    for part in re.findall(r"[^.\[\]]+", place):
        struct = _find_struct(current)
        if struct is None:
            return Any
        names = {field.encode_name: field.name for field in msgspec.structs.fields(struct)}
        current = get_type_hints(struct, include_extras=True).get(names.get(part, ""), Any)
    return current


def _list_keys(into: object, place: str) -> list[str]:
    struct = _find_struct(_find_type(into, place))
    return [] if struct is None else [field.encode_name for field in msgspec.structs.fields(struct)]


def _find_struct(hint: object) -> type[msgspec.Struct] | None:
    """The Struct a hint is or wraps."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    return next((struct for part in get_args(hint) if (struct := _find_struct(part)) is not None), None)


def _list_literals(hint: object) -> Iterator[object]:
    if get_origin(hint) is Literal:
        yield from get_args(hint)
        return
    for part in get_args(hint):
        yield from _list_literals(part)
