"""NoOpConnector: a KV connector whose every hook does nothing, so that a run with it costs what vLLM's framework costs.

Configure it with `"kv_connector": "NoOpConnector", "kv_connector_module_path": "tracon_patches.noop_connector"`. This
module alone imports vLLM when it is imported: vLLM imports it, and only when it is configured.
"""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)


class NoOpMetadata(KVConnectorMetadata):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """Carries nothing to the workers."""


class NoOpConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc]
    """Matches nothing, loads nothing, saves nothing. It supports hybrid memory allocation as Mooncake and NIXL do, so
    that vLLM takes the same paths as with them."""

    def get_num_new_matched_tokens(self, *_args: Any, **_kwargs: Any) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, *_args: Any, **_kwargs: Any) -> None:
        return

    def build_connector_meta(self, scheduler_output: object) -> NoOpMetadata:
        return NoOpMetadata()

    def request_finished(self, *_args: Any, **_kwargs: Any) -> tuple[bool, None]:
        return False, None

    def request_finished_all_groups(self, *_args: Any, **_kwargs: Any) -> tuple[bool, None]:
        return False, None

    def start_load_kv(self, *_args: Any, **_kwargs: Any) -> None:
        return

    def wait_for_layer_load(self, *_args: Any, **_kwargs: Any) -> None:
        return

    def save_kv_layer(self, *_args: Any, **_kwargs: Any) -> None:
        return

    def wait_for_save(self) -> None:
        return

    def get_finished(self, *_args: Any, **_kwargs: Any) -> tuple[None, None]:
        return None, None
