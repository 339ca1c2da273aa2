"""No request leaves that would kill the engine it is meant for or hang in it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.profile import list_config_names, load_config
from launch.transfer_request import TransferRefused, Transferring, check_request, find_transferring

PREFILL: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False, "transfer_id": "t"}
DECODE: dict[str, Any] = {
    "do_remote_decode": False, "do_remote_prefill": True, "transfer_id": "t", "remote_engine_id": "e",
    "remote_bootstrap_addr": "http://127.0.0.1:8998",
}  # fmt: skip
NIXL_DECODE: dict[str, Any] = {
    "do_remote_prefill": True, "remote_engine_id": "e", "remote_request_id": "r", "remote_block_ids": [[1, 2]],
    "remote_host": "localhost", "remote_port": 5600, "tp_size": 1,
}  # fmt: skip


def accepted(config: str, params: dict[str, Any] | None, **body: object) -> bool:
    request = {"max_tokens": 1, "ignore_eos": True, "kv_transfer_params": params} | body
    try:
        check_request(request, load_config(config), "cpu")
    except TransferRefused as error:
        return not (config in str(error) and error.remedy)
    return True


@pytest.mark.parametrize(
    ("config", "prefill", "decode"),
    [
        ("plain", False, False),
        ("noop_connector", False, False),
        ("lmcache_only", False, False),
        ("mooncake_producer", True, False),
        ("mooncake_consumer", False, True),
        ("mooncake_both", True, True),
        ("multi_mooncake_lmcache", True, True),
    ],
)
def test_a_request_is_only_for_an_engine_of_its_role(config: str, prefill: bool, decode: bool) -> None:
    assert (accepted(config, PREFILL), accepted(config, DECODE)) == (prefill, decode)
    assert accepted(config, None)


@pytest.mark.parametrize("params", [{}, {**PREFILL, "do_remote_prefill": True}])
def test_a_request_has_exactly_one_kind(params: dict[str, Any]) -> None:
    assert not accepted("mooncake_both", params)


@pytest.mark.parametrize("body", [{"max_tokens": 2}, {"ignore_eos": False}])
def test_a_prefill_request_makes_exactly_one_token(body: dict[str, object]) -> None:
    assert not accepted("mooncake_both", PREFILL, **body)
    assert accepted("mooncake_both", DECODE, **body)


@given(
    made_for=st.sampled_from([("mooncake_both", PREFILL), ("mooncake_both", DECODE), ("nixl_both", NIXL_DECODE)]),
    spoiled=st.sampled_from([None, "", 0, [], [[]], -1, "nowhere"]),
    data=st.data(),
)
def test_a_request_with_a_field_missing_or_void_is_refused(
    made_for: tuple[str, dict[str, Any]], spoiled: object, data: st.DataObject
) -> None:
    config, params = made_for
    fields = sorted(name for name in params if not name.startswith("do_"))
    name = data.draw(st.sampled_from(fields))
    assert accepted(config, params)
    assert not accepted(config, {key: value for key, value in params.items() if key != name})
    any_text_will_do = name in ("transfer_id", "remote_engine_id", "remote_request_id", "remote_host")
    assert accepted(config, {**params, name: spoiled}) == (any_text_will_do and spoiled == "nowhere")


def test_the_connector_that_moves_kv_is_found_inside_a_multi_connector() -> None:
    found = {name: find_transferring(load_config(name), "cpu") for name in list_config_names()}
    assert found["multi_mooncake_lmcache"] == Transferring("MooncakeConnector", "kv_both")
    assert found["mooncake_producer"] == Transferring("MooncakeConnector", "kv_producer")
    assert found["nixl_both"] == Transferring("NixlConnector", "kv_both")
    assert found["lmcache_only"] is None
