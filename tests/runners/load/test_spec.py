from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from results.records.errors import SpecError
from results.records.load_specs import LoadSpec
from runners.load.messages import LoadError, read_load_spec

SPEC = LoadSpec(
    url="http://127.0.0.1:8000",
    model="m",
    rate_per_s=4.0,
    input_tokens=512,
    output_tokens=32,
    requests_path="requests.jsonl",
    seed=2**63 + 1,
)


def test_a_spec_survives_its_json(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_bytes(msgspec.json.encode(SPEC))
    assert read_load_spec(path) == SPEC


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"url": "127.0.0.1:8000"}, "url"),
        ({"url": "http://me:hidden@127.0.0.1:8000"}, "user or a password"),
        ({"url": "me:hidden@127.0.0.1:8000"}, "user or a password"),
        ({"rate_per_s": 0.0}, "rate_per_s"),
        ({"arrival": "bursty"}, "arrival"),
        ({"min_duration_s": 90.0, "max_duration_s": 60.0}, "max_duration_s"),
        ({"vocab_low": 9, "vocab_high": 10}, "tokens 9..10"),
        ({"cell_index": -1}, "cell_index"),
    ],
)
def test_an_impossible_spec_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(SpecError, match=named) as refused:
        replace(SPEC, **change)
    assert refused.value.remedy
    assert refused.value.exit_code == 2
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("text", ["{", '{"url": 5}', '{"url": "http://h"}'])
def test_a_spec_file_that_is_none_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.json"
    path.write_text(text)
    with pytest.raises(LoadError, match=r"spec\.json"):
        read_load_spec(path)
    with pytest.raises(LoadError, match="nowhere"):
        read_load_spec(tmp_path / "nowhere")


def test_a_spec_with_a_field_that_no_load_has_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    path.write_bytes(msgspec.json.encode(msgspec.to_builtins(SPEC) | {"drain": 5}))
    with pytest.raises(LoadError, match="it has no field drain; it has url,"):
        read_load_spec(path)


def test_the_expected_window_is_what_both_minima_need() -> None:
    assert SPEC.expected_window_s == 60.0
    assert replace(SPEC, rate_per_s=0.5).expected_window_s == 400.0
    assert replace(SPEC, rate_per_s=0.1).expected_window_s == SPEC.max_duration_s
