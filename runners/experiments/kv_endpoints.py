"""How the engines of a cell can exchange KV, for the router before them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from launch.ports import LOOPBACK
from launch.profile import ConnectorConfig, Kind
from launch.transfer_request import BOOTSTRAP_PORT, find_transferring
from results.records.errors import DAMAGED_JSON
from results.records.router_spec import KvEndpoint
from runners.campaign.engine_group import Member

TRANSPORTS = {"MooncakeConnector": "mooncake", "NixlConnector": "nixl"}
_BYTES_OF = {"bfloat16": 2, "float16": 2, "float32": 4}


def endpoint_of(member: Member, config: ConnectorConfig, kind: Kind, bytes_per_token: int | None) -> KvEndpoint | None:
    """How this engine's KV can be moved; None where its config has no connector that does."""
    part = find_transferring(config, kind)
    if part is None:
        return None
    port = member.engine.ports.get(BOOTSTRAP_PORT)
    return KvEndpoint(
        transport=TRANSPORTS[part.connector],
        kv_role=part.role,
        bootstrap="" if port is None else f"http://{LOOPBACK}:{port}",
        kv_bytes_per_token=bytes_per_token,
    )


def kv_bytes_per_token(model: Path) -> int | None:
    """Keys and values of one token over all layers, from the model folder's config.json; None where it lacks them."""
    try:
        config: dict[str, Any] = msgspec.json.decode((model / "config.json").read_bytes())
        heads = config["num_attention_heads"]
        size = config.get("head_dim") or config["hidden_size"] // heads
        element = _BYTES_OF[config.get("torch_dtype") or config["dtype"]]
        return int(2 * config["num_hidden_layers"] * config.get("num_key_value_heads", heads) * size * element)
    except (OSError, *DAMAGED_JSON, KeyError, TypeError, ZeroDivisionError):
        return None
