"""Secrets in environments, command lines, texts and settings are hidden, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launch.redaction import REDACTED, redact, redact_arguments, redact_settings, redact_text, select_inherited_env

names = st.text(st.characters(codec="ascii", categories=("Lu", "Ll", "Nd")), max_size=8)
secret_words = st.sampled_from(["TOKEN", "api_key", "Secret", "PASSWORD", "credential", "AUTH", "Cookie"])
passwords = st.text(
    st.characters(codec="ascii", exclude_characters="@", categories=("L", "N", "P", "S")), min_size=6, max_size=30
)


@given(names, secret_words, names, st.text(max_size=40))
def test_a_variable_named_like_a_secret_never_shows_its_value(before: str, word: str, after: str, value: str) -> None:
    assert redact({before + word + after: value}) == {before + word + after: REDACTED}


@given(passwords, st.text(max_size=20), st.text(max_size=20))
def test_credentials_inside_urls_never_show(password: str, before: str, after: str) -> None:
    shown = redact_text(f"{before}https://someone:{password}@host.example/path{after}")
    assert f"someone:{password}" not in shown
    assert redact_text(shown) == shown


@given(
    st.dictionaries(st.sampled_from(["PATH", "HOME", "LANG", "OMP_NUM_THREADS"]), st.text("abc/:.0123 ,=", max_size=30))
)
def test_ordinary_variables_stay_as_they_are(environ: dict[str, str]) -> None:
    kept = {name: value for name, value in environ.items() if "://" not in value}
    assert redact(kept) == kept


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--api-key k1 k2 -O3 --port 1", "--api-key * * -O3 --port 1"),
        ("--api-key -k1 --port 1", "--api-key * --port 1"),
        ("--api_key=k1 k2", "--api_key=* k2"),
        ("--ssl-keyfile-password p --ssl-keyfile a.pem", "--ssl-keyfile-password * --ssl-keyfile a.pem"),
        ("--key k --auth u:p --redis-pass p --http-auth=u:p", "--key * --auth * --redis-pass * --http-auth=*"),
        ("--passphrase p --bearer b --requirepass p", "--passphrase * --bearer * --requirepass *"),
        ("--disable-auth --port 1", "--disable-auth --port 1"),
        ("--api-key-header x --tokenizer t --max-tokens 5", "--api-key-header x --tokenizer t --max-tokens 5"),
        ("--monkey m --bypass b --author a", "--monkey m --bypass b --author a"),
        ("--kv-transfer-config.redis_password p --x.a.key=k", "--kv-transfer-config.redis_password * --x.a.key=*"),
        ("--remote redis://:p@host:1/0 a.json", "--remote redis://*@host:1/0 a.json"),
    ],
)
def test_of_a_command_line_only_secrets_are_hidden(words: str, shown: str) -> None:
    assert redact_arguments(words.split()) == tuple(shown.replace("*", REDACTED).split())


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://:hunter2@host:6379/0", "redis://*@host:6379/0"),
        ("https://host/x?user=me&access_token=hunter2&a=1#top", "https://host/x?user=me&access_token=*&a=1#top"),
        ("redis://host/0?password=hunter2", "redis://host/0?password=*"),
        ("Authorization: Bearer hunter2hunter2, x", "Authorization: Bearer *, x"),
        ("Authorization: Basic bWU6aHVudGVyMg==", "Authorization: Basic *"),
        ("https://host/x?tokens=5&keyboard=us", "https://host/x?tokens=5&keyboard=us"),
        ("the bearer of news", "the bearer of news"),
    ],
)
def test_of_a_text_only_secrets_are_hidden(text: str, shown: str) -> None:
    assert redact_text(text) == shown.replace("*", REDACTED)
    assert redact_text(redact_text(text)) == redact_text(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('{"kv_role": "kv_both", "redis_password": "p"}', '{"kv_role": "kv_both", "redis_password": "*"}'),
        ('{"a":[{"apiKey":5,"max_tokens":5}]}', '{"a": [{"apiKey": "*", "max_tokens": 5}]}'),
        ('[{"credentials": {"user": "u", "pin": 1}}]', '[{"credentials": "*"}]'),
        ('{"more": "{\\"lmcache.redis_pass\\": \\"p\\"}"}', '{"more": "{\\"lmcache.redis_pass\\": \\"*\\"}"}'),
        ('{"remote": "redis://:p@host:1/0", "token": "t"}', '{"remote": "redis://*@host:1/0", "token": "*"}'),
        ('{"a":"redis://u:p@h","b":{"c":"x@y"}}', '{"a": "redis://*@h", "b": {"c": "x@y"}}'),
        ('{"a":"http://h","b":{"c":"x@y"}}', '{"a": "http://h", "b": {"c": "x@y"}}'),
        ('{"a":"redis://u:p@h","a":"x"}', '{"a": "x"}'),
        ('{"redis://u:p@h": 1}', '{"redis://*@h": 1}'),
        ('{"use_auth":true,"token":null,"password":"","pass_config":{}}',) * 2,
        ('{"monkey":  1.50, "tokenizer": "t"}',) * 2,
        ("[1, 2]",) * 2,
        ("[1, 2",) * 2,
    ],
)
def test_of_json_in_an_option_or_a_variable_only_secrets_are_hidden(text: str, shown: str) -> None:
    shown = shown.replace("*", REDACTED)
    assert redact_arguments(("--kv-transfer-config", text, f"--more={text}")) == (
        "--kv-transfer-config", shown, f"--more={shown}",
    )  # fmt: skip
    assert redact({"LMCACHE_EXTRA_CONFIG": text}) == {"LMCACHE_EXTRA_CONFIG": shown}
    assert redact_text(shown) == shown


def test_json_that_is_too_deep_to_be_searched_is_hidden_whole() -> None:
    assert redact_text("[" * 100_000) == REDACTED


def test_of_a_configs_settings_only_secrets_are_hidden() -> None:
    transfer = {"kv_connector_extra_config": {"connectors": [{"redis_password": "p", "port": 1}]}}
    shown = {"kv_connector_extra_config": {"connectors": [{"redis_password": REDACTED, "port": 1}]}}
    settings = {"configs": {"own": {"kv_transfer": transfer, "cpu": {"kv_transfer": transfer}}}, "grid": {"key": "k"}}
    assert redact_settings(settings) == {
        "configs": {"own": {"kv_transfer": shown, "cpu": {"kv_transfer": shown}}},
        "grid": {"key": "k"},
    }


@pytest.mark.parametrize("name", ["REDIS_PASS", "MY_JWT", "API_BEARER", "TRACON_ADMIN_TOKEN"])
def test_a_secret_by_its_name_is_shown_to_nobody(name: str) -> None:
    assert redact({name: "x"}) == {name: REDACTED}
    assert select_inherited_env({name: "x"}) == {}
