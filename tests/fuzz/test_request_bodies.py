"""Whatever a request's body holds: the router routes it, and makes of it what an engine can read, or moves no KV."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runners.router import facts
from runners.router.facts import MAX_TOKENS_LIMIT, SESSION_LIMIT, read_facts
from runners.router.transfer.request_bodies import (
    OWN,
    Unfit,
    add_pull_params,
    make_handover_prefill_body,
    make_prefix_body,
    read_request,
    require_movable_prefix,
    require_one_prefill,
    tokenize_body,
)
from tests.examples import examples
from tests.fuzz.mutations import mutated

COMPLETION = (
    b'{"model":"m","prompt":[1,22,333,4444,5],"max_tokens":4,"stream":true,"seed":7,"session_id":"s","user":"u"}'
)
CHAT = b'{"messages":[{"role":"user","content":"hello"}],"tools":[{"type":"function"}],"max_completion_tokens":9}'
RESPONSE = b'{"input":"hello","instructions":"be brief","previous_response_id":"resp_1","max_output_tokens":3}'
EMBEDDING = b'{"input":[[1,2,3],[4,5]],"n":1,"logit_bias":{"5":1.5},"temperature":0.5}'
PROMPTS = (
    COMPLETION,
    b'{"prompt" : [ 1, 22 , 333 ] , "user":"u"}',
    b'{"extra":{"prompt":[1,2,3,4]},"prompt":[5,6],"user":"prompt"}',
    b'{"prompt":[1,2,3,4],"prompt":[5,6]}',
    b'{"prompt":[1,2,3],"user":"cut"}',
    b'{"extra":{"prompt":[1,2,3]},"prompt":"cut"}',
    b'{"a\\"prompt":[1,2],"user":"u"}',
    b'{"prompt":[1,[2,3]]}',
    b'{"prompt":[1,"]",2]}',
)
BODIES = mutated([COMPLETION, CHAT, RESPONSE, EMBEDDING]) | st.binary(max_size=40)
BLOCK = 2
read_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
"""Values as they are written: an engine's reader of numbers is not msgspec's."""
HUGE = b'{"prompt":[1,2],"seed":%b}' % (b"9" * 30)


@given(BODIES, st.booleans())
@settings(max_examples=examples(300))
@example(HUGE, False)
@example(b'{"prompt":' + b"[" * 3000 + b"1" + b"]" * 3000 + b"}", False)
@example(b'{"input":' + b"[" * 3000 + b"1" + b"]" * 3000 + b"}", True)
def test_what_a_request_is_routed_by(body: bytes, chat: bool) -> None:
    read = read_facts(body, BLOCK, chat=chat)
    assert read == read_facts(body, BLOCK, chat=chat), "whatever was read before it"
    assert len(read.session) <= SESSION_LIMIT
    assert 0 <= read.max_tokens <= MAX_TOKENS_LIMIT
    assert 0 <= read.input_tokens <= len(body)
    assert len(read.keys) * BLOCK <= read.input_tokens + 1


@given(mutated(PROMPTS))
@settings(max_examples=examples(300))
def test_token_ids_that_are_cut_out_are_read_as_within_the_body(body: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(facts, "CUT_BYTES", range(len(body) + 1))
        cut = read_facts(body, BLOCK, chat=False)
        patch.setattr(facts, "CUT_BYTES", range(0))
        assert cut == read_facts(body, BLOCK, chat=False)


@given(BODIES, st.sampled_from(["/v1/completions", "/v1/chat/completions?x=1"]))
@settings(max_examples=examples(300))
@example(HUGE, "/v1/completions")
@example(b'{"prompt":[1,%b]}' % (b"9" * 30), "/v1/completions")
@example(b'{"prompt":[1,2],"seed":1e999}', "/v1/completions")
@example(b'{"prompt":"\xff"}', "/v1/completions")
def test_what_moves_kv_for_a_request(body: bytes, path: str) -> None:
    params: dict[str, Any] = {"do_remote_prefill": True}
    try:
        asked = read_request(path, body)
    except Unfit as error:
        assert str(error)
        return
    for require in (require_movable_prefix, require_one_prefill):
        try:
            require(asked)
        except Unfit as error:
            assert str(error)
    made = [tokenize_body(asked)]
    made += [
        msgspec.json.encode(one)
        for one in (make_prefix_body(asked, [1], params, 1), make_handover_prefill_body(asked, params))
    ]
    assert all(read_fields(one) for one in made)
    pulled, sent = read_fields(add_pull_params(body, params)), read_fields(body)
    assert msgspec.json.decode(pulled.pop(OWN)) == params
    sent.pop(OWN, None)
    assert pulled == sent
