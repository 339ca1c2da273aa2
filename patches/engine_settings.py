"""What vLLM settled on for this engine: settings it may change by itself for a connector, read when its scheduler is
made, after all of them are fixed."""

from __future__ import annotations

from collections.abc import Mapping

SETTINGS: Mapping[str, tuple[str, str]] = {
    "async_scheduling": ("scheduler_config", "async_scheduling"),
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "max_num_batched_tokens": ("scheduler_config", "max_num_batched_tokens"),
    "disable_hybrid_kv_cache_manager": ("scheduler_config", "disable_hybrid_kv_cache_manager"),
    "cudagraph_mode": ("compilation_config", "cudagraph_mode"),
    "enforce_eager": ("model_config", "enforce_eager"),
    "use_v2_model_runner": ("", "use_v2_model_runner"),
    "prefix_caching": ("cache_config", "enable_prefix_caching"),
    "block_size": ("cache_config", "block_size"),
    "kv_cache_dtype": ("cache_config", "cache_dtype"),
    "kv_cache_layout": ("cache_config", "kv_cache_layout"),
    "kv_blocks": ("cache_config", "num_gpu_blocks"),
    "kv_capacity_tokens": ("cache_config", "kv_cache_size_tokens"),
}
"""Name in the ring's header to the part of VllmConfig, empty = itself, and its attribute."""

Setting = bool | int | str | None


def read_settings(vllm_config: object) -> dict[str, Setting]:
    """Each of SETTINGS; None where this vLLM has no such attribute."""
    return {
        name: _simplify_setting(_read(vllm_config, part, attribute)) for name, (part, attribute) in SETTINGS.items()
    }


def _read(vllm_config: object, part: str, attribute: str) -> object:
    owner = getattr(vllm_config, part, None) if part else vllm_config
    try:
        return getattr(owner, attribute, None)
    except Exception:  # noqa: BLE001 - a property of vLLM's, which may refuse a combination of settings
        return None


def _simplify_setting(value: object) -> Setting:
    """Enumerations by name."""
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(getattr(value, "name", value))
