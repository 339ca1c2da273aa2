"""How the router handles a request, by its path: routed by the policy, forwarded to any instance, or refused."""

from __future__ import annotations

ROUTED = {
    "/v1/completions": False,
    **dict.fromkeys(
        (
            "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v2/embed", "/pooling",
            "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank", "/generative_scoring",
            "/cohere/v2/chat", "/v1/systemone", "/v1/chat/completions/batch", "/inference/v1/generate",
        ),
        True,
    ),
}  # fmt: skip
"""Path of a POST that the policy routes -> True for every API except completions."""
ROUTED_TARGETS = {path.encode(): chat for path, chat in ROUTED.items()}
"""The same by request target; few targets have a query after the path."""
PASSED_ON = {
    ("GET", "/v1/models"),
    ("GET", "/version"),
    ("GET", "/tokenizer_info"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/messages/count_tokens"),
}
"""Requests that every instance answers alike."""
HEALTH = ("/health", "/ping")

_STORED = (
    "a stored response is at the instance that made it (its answer's `x-tracon-instance`): send this to that "
    "instance's own address"
)
_CONTROL = "this changes or describes one engine: send it to each instance's own address"
_UPLOAD = "the router does not pass on uploads of audio or dispatching calls: send this to an instance's own address"
_RENDER = "the router passes on no rendering calls: send this to an instance's own address"
_DOCS = "this page describes one engine: ask an instance's own address for it"
_NO_CORS = "the router answers no CORS preflight: a web page of another origin may not use it; send from a server"
_CONTROLS = frozenset(
    [
        "abort_requests",
        "collective_rpc",
        "fault_tolerance",
        "finish_weight_update",
        "get_world_size",
        "init_weight_transfer_engine",
        "is_paused",
        "is_scaling_elastic_ep",
        "is_sleeping",
        "kv_event_sources",
        "load",
        "pause",
        "release_kv_cache_memory",
        "reset_encoder_cache",
        "reset_mm_cache",
        "reset_prefix_cache",
        "resume",
        "scale_elastic_ep",
        "server_info",
        "shutdown_weight_transfer_engine",
        "sleep",
        "start_draft_weight_update",
        "start_profile",
        "start_weight_update",
        "stop_profile",
        "update_weight_version",
        "update_weights",
        "wake_up",
        "weight_checker",
        "weight_info",
    ]
)
_CONTROL_PATHS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/inference/v1/abort_requests")


def explain_not_passed_on(method: str, path: str) -> tuple[int, str]:
    """HTTP status and message for a request that the router does not serve; `path`: without a slash at its end."""
    first = path.strip("/").partition("/")[0]
    if method == "OPTIONS":
        return 405, _NO_CORS
    if path in ROUTED and method == "POST":
        return 404, f"write {path} without the slash at its end"
    if path in ROUTED:
        return 405, f"{path} takes POST, not {method}"
    if path.startswith("/v1/responses/") and not path.endswith("/render"):
        return 501, _STORED
    if first in _CONTROLS or path in _CONTROL_PATHS:
        return 501, _CONTROL
    if path.endswith(("/render", "/derender")):
        return 501, _RENDER
    if first.partition(".")[0] in ("docs", "redoc", "openapi", "static"):
        return 501, _DOCS
    if path.startswith("/v1/audio/") or path in ("/invocations", "/v1/realtime"):
        return 501, _UPLOAD
    return 404, f"the router has no {method} {path}"
