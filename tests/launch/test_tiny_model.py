"""The tiny model: what is written is a model the engine's own libraries read."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from launch.environment import find_engine
from launch.tiny_model import (
    MAX_POSITION,
    SPECIAL_TOKENS,
    TEXT_TOKENS,
    VOCAB_SIZE,
    make_byte_alphabet,
    write_tiny_model,
)


def read(path: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads(path.read_text())
    return content


def test_writing_twice_touches_nothing(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model")
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {path.name for path in before} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
    }  # fmt: skip
    write_tiny_model(folder)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_a_changed_file_is_put_right(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path)
    (folder / "config.json").write_text("{}")
    write_tiny_model(folder)
    assert read(folder / "config.json")["max_position_embeddings"] == MAX_POSITION


def test_every_byte_has_one_token_and_the_specials_follow(tmp_path: Path) -> None:
    assert len(set(make_byte_alphabet())) == TEXT_TOKENS
    tokenizer = json.loads((write_tiny_model(tmp_path) / "tokenizer.json").read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(TEXT_TOKENS + len(SPECIAL_TOKENS)))
    assert vocabulary["a"] == make_byte_alphabet().index("a")
    assert [vocabulary[token] for token in SPECIAL_TOKENS] == [256, 257, 258]
    assert max(vocabulary.values()) < VOCAB_SIZE


ROUND_TRIP = """
import sys
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoTokenizer
tokenizer = Tokenizer.from_file(sys.argv[1] + "/tokenizer.json")
text = "".join(map(chr, range(1, 0x2000, 3))) + " it's  two\\n\\nlines \\U0001f680"
ids = tokenizer.encode(text).ids
assert len(ids) == len(text.encode()) and max(ids) < 256, ids
assert tokenizer.decode(ids) == text
fast = AutoTokenizer.from_pretrained(sys.argv[1])
chat = fast.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
assert chat == "<|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\n", chat
assert fast.eos_token_id == 258 == AutoConfig.from_pretrained(sys.argv[1]).eos_token_id
print("round trip")
"""


@pytest.mark.engine
def test_the_engines_tokenizer_reads_it_and_returns_every_byte(tmp_path: Path) -> None:
    engine = find_engine("cpu")
    folder = write_tiny_model(tmp_path)
    done = subprocess.run(
        [str(engine.python), "-c", ROUND_TRIP, str(folder)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip().endswith("round trip"), done.stderr
