"""Repairs of known faults of vLLM 0.32 that a transfer proof hits, applied only with TRACON_REPAIRS=1.

Measured engines run as shipped, without them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .hooks import load, replace_once

MULTI_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector"


def skip_unregistered_metrics() -> None:
    """Let MultiConnector skip statistics of a child that has registered no Prometheus metrics.

    As shipped it asserts that every child has. Mooncake never does, so its first completed or expired transfer inside
    a MultiConnector ends the API server (vllm-project/vllm issue 43828, open in 0.32).
    """
    metrics: Any = load(MULTI_CONNECTOR).MultiKVConnectorPromMetrics
    names = tuple(inspect.signature(metrics.observe).parameters)
    if names != ("self", "transfer_stats_data", "engine_idx"):
        raise TypeError(f"MultiKVConnectorPromMetrics.observe has the parameters ({', '.join(names)})")

    replace_once(metrics, "observe", _wrap_observe, "_tracon_repaired")


def _wrap_observe(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def observe(self: Any, transfer_stats_data: Mapping[str, object], engine_idx: int = 0) -> None:  # noqa: ANN401
        registered = {name: data for name, data in transfer_stats_data.items() if name in self._prom_metrics}
        original(self, registered, engine_idx)

    return observe
