"""Whatever bytes a trace has, in whatever format: it is read and sound, or refused by file, line and rule."""

from __future__ import annotations

import gzip
import lzma
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runners.trace.formats import FORMATS, detect_format, read_trace
from runners.trace.source import TraceError
from tests.examples import examples
from tests.fuzz.mutations import mutated
from tests.runners.trace import files

PACKERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    paths = files.write_all(tmp_path_factory.mktemp("traces"))
    return {format: path.read_bytes() for format, path in paths.items()}


@given(data=st.data(), format=st.sampled_from(list(FORMATS)), suffix=st.sampled_from(list(PACKERS)))
@settings(max_examples=examples(100))
def test_a_trace_is_sound_or_refused(
    data: st.DataObject, format: str, suffix: str, made: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = data.draw(mutated([made[format]]))
    packed = data.draw(mutated([PACKERS[suffix](text)])) if suffix else text
    path: Path = tmp_path_factory.getbasetemp() / f"fuzzed.jsonl{suffix}"
    path.write_bytes(packed)
    try:
        files.assert_sound(read_trace(path, format))
        detect_format(path)
    except TraceError as error:
        assert error.file == path.name
        assert error.line >= 1
        assert error.rule
