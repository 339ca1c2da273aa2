"""Repairs of known faults of vLLM 0.32 that a proof of transfer runs into, applied only with TRACON_REPAIRS=1.

Measured engines run without them, as shipped: no measurement transfers anything.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from .hooks import replace_once

MULTI_CONNECTOR = "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector"


def skip_unregistered_metrics() -> None:
    """Let MultiConnector pass over a child's statistics that have no Prometheus metrics.

    As shipped it asserts that they have, Mooncake's never do, and so its first completed or expired transfer inside a
    MultiConnector ends the API server (vllm-project/vllm issue 43828, open in 0.32).
    """
    metrics: Any = importlib.import_module(MULTI_CONNECTOR).MultiKVConnectorPromMetrics
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
