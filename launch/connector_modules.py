"""What an engine imports of each connector's package."""

from __future__ import annotations

from pathlib import Path

CONNECTORS = ("mooncake", "nixl", "lmcache")
_MODULES = {"mooncake": "mooncake.engine", "nixl": "nixl._api", "lmcache": "lmcache"}
"""For each connector, the module that loads its compiled part; LMCache's has none."""
_LMCACHE_ADAPTER = "lmcache.integration.vllm.vllm_v1_adapter"
"""What vLLM's connector imports of LMCache."""
_LMCACHE_KERNELS = ("cuda_ops", "c_ops")
"""LMCache's kernels for a GPU: their name in 0.5.6, and an older one. If 0.5.6 cannot import them it copies KV with
torch and only logs that: its tax would be another."""


def list_modules(connector: str, kind: str, site_packages: Path) -> tuple[str, ...]:
    """What an engine of this kind imports of a connector; before an install, of the locked one. All of it but
    Mooncake's, which needs the driver's library, imports on a host without a GPU."""
    if connector != "lmcache" or kind != "cuda":
        return (_MODULES[connector],)
    built = [name for name in _LMCACHE_KERNELS if any((site_packages / "lmcache").glob(f"{name}.*"))]
    kernels = built[0] if built else _LMCACHE_KERNELS[0]
    return (_LMCACHE_ADAPTER, f"lmcache.{kernels}")
