from __future__ import annotations

import abc
import importlib
import pickle
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from .conftest import PutModules

BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"


class KVConnectorMetadata(abc.ABC):  # noqa: B024 - as vLLM has it
    pass


class SupportsHMA(abc.ABC):
    @abc.abstractmethod
    def request_finished_all_groups(self, request: object, block_ids: object) -> tuple[bool, object]: ...


class KVConnectorBase_V1(abc.ABC):
    """The abstract hooks of vLLM 0.32's base class: a connector that misses one cannot be made."""

    def __init__(self, vllm_config: object, role: object, kv_cache_config: object) -> None:
        self.kv_cache_config = kv_cache_config

    @abc.abstractmethod
    def start_load_kv(self, forward_context: object, **kwargs: object) -> None: ...
    @abc.abstractmethod
    def wait_for_layer_load(self, layer_name: str) -> None: ...
    @abc.abstractmethod
    def save_kv_layer(self, layer_name: str, kv_layer: object, attn_metadata: object, **kwargs: object) -> None: ...
    @abc.abstractmethod
    def wait_for_save(self) -> None: ...
    @abc.abstractmethod
    def get_num_new_matched_tokens(self, request: object, num_computed_tokens: int) -> tuple[int | None, bool]: ...
    @abc.abstractmethod
    def update_state_after_alloc(self, request: object, blocks: object, num_external_tokens: int) -> None: ...
    @abc.abstractmethod
    def build_connector_meta(self, scheduler_output: object) -> KVConnectorMetadata: ...


@pytest.fixture
def connector(put_modules: PutModules) -> Iterator[Any]:
    base = ModuleType(BASE)
    vars(base).update(
        KVConnectorBase_V1=KVConnectorBase_V1, KVConnectorMetadata=KVConnectorMetadata, SupportsHMA=SupportsHMA
    )
    put_modules({BASE: base})
    module = importlib.import_module("patches.noop_connector")
    yield module.NoOpConnector("config", "role", "kv")
    del sys.modules["patches.noop_connector"]


def test_it_matches_loads_and_saves_nothing(connector: Any) -> None:  # noqa: ANN401 - made from a stand-in of vLLM
    assert connector.get_num_new_matched_tokens("request", 17) == (0, False)
    assert connector.request_finished("request", [1, 2]) == (False, None)
    assert connector.request_finished_all_groups("request", ([1], [2])) == (False, None)
    assert connector.get_finished({"request"}) == (None, None)
    assert connector.update_state_after_alloc("request", "blocks", 3) is None
    assert connector.start_load_kv("context", request_ids=()) is None
    assert connector.save_kv_layer("layer", "tensor", "metadata") is None
    assert connector.wait_for_layer_load("layer") is None
    assert connector.wait_for_save() is None


def test_its_metadata_carries_a_stamp_to_the_workers(connector: Any) -> None:  # noqa: ANN401
    first, second = connector.build_connector_meta("step"), connector.build_connector_meta("step")
    first.step, second.step = 1, 2
    assert pickle.loads(pickle.dumps(first)).step == 1
    assert isinstance(first, KVConnectorMetadata)
