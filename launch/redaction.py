"""Keeps secrets out of what is stored or shown, and out of the environment that engines inherit."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

REDACTED = "<redacted>"
_SECRET_NAME = re.compile(
    r"TOKEN(?!IZERS_)|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|BEARER|JWT|_PWD$|_PASS$|_PAT$",
    re.IGNORECASE,
)
_SECRET_OPTION = re.compile(
    r"--?(?:[\w.-]*(?:apikey|token|password|passwd|passphrase|requirepass|secret|credentials?)"
    r"|(?:[\w.-]*[-_.])?(?:key|auth|authorization|bearer|cookie|jwt|pass|pwd))",
    re.IGNORECASE,
)
"""The last word of its name decides: `--api-key` and `--ssl-keyfile-password`, not `--ssl-keyfile` or `--tokenizer`."""
_WORD_BEGINS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
"""Inside a JSON key such as `apiKey`."""
PASS_ENV = "TRACON_PASS_ENV"
"""Environment variable: names, separated by commas, that engines inherit although they are named as secrets."""
ENGINE_PREFIXES = ("HF_", "HUGGING_FACE_", "VLLM_", "LMCACHE_", "MOONCAKE_", "MC_", "NIXL_", "UCX_", "TOKENIZERS_")
_URL_CREDENTIALS = re.compile(r"(://)\S*@")
_URL_PARAMETER = re.compile(
    r"([?&][\w-]*(?:token|password|passwd|passphrase|secret|credentials?|signature|key|auth)=)"
    r"[^&#\s\"']+",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(bearer|authorization\s*:\s*basic)(\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
_TOKEN = re.compile(r"\b(?:hf_|ghp_|gho_|github_pat_|glpat-|sk-|xox[abp]-)[A-Za-z0-9_-]{16,}|\bAKIA[A-Z0-9]{16}\b")


def redact(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` without secrets: those named so (TOKEN, KEY ...), and what `redact_text` leaves out of the others."""
    return {name: REDACTED if _SECRET_NAME.search(name) else redact_text(value) for name, value in environ.items()}


def redact_text(text: str) -> str:
    """`text` without credentials and parameters named as secrets in its URLs, bearer tokens and known token forms.

    Of a text that is JSON, also without what is stored under keys that are named as secrets; it remains JSON.
    """
    shown = _redact_json(text)
    return _redact_forms(text) if shown is None else shown


def _redact_forms(text: str) -> str:
    """What `redact_text` makes of a text that is no JSON."""
    text = _URL_CREDENTIALS.sub(rf"\1{REDACTED}@", text)
    text = _URL_PARAMETER.sub(rf"\1{REDACTED}", text)
    return _TOKEN.sub(REDACTED, _BEARER.sub(rf"\1\2{REDACTED}", text))


def _redact_json(text: str) -> str | None:
    """An object or a list without its secrets, each text in it by itself; None for any other text."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        value = json.loads(text)
        shown = _redact_keys(value)
    except RecursionError:  # too deep to be checked
        return REDACTED
    except ValueError:
        return None
    # Only the text as a whole shows a secret where a key is given twice, or where a URL stands before a later text's @.
    has_secrets = shown != value or _redact_forms(text) != text
    return json.dumps(shown) if has_secrets else text


def _redact_keys(value: Any) -> Any:  # noqa: ANN401  (any JSON value)
    """A JSON value without what its objects store under keys named as secret options; each text as `redact_text`."""
    if isinstance(value, Mapping):
        return {
            _redact_forms(name): REDACTED if _is_secret_key(name, stored) else _redact_keys(stored)
            for name, stored in value.items()
        }
    if isinstance(value, list | tuple):
        return [_redact_keys(each) for each in value]
    return redact_text(value) if isinstance(value, str) else value


def _is_secret_key(name: str, stored: object) -> bool:
    is_empty = stored is None or stored == "" or isinstance(stored, bool)
    return not is_empty and _SECRET_OPTION.fullmatch("-" + _WORD_BEGINS.sub("_", name)) is not None


def redact_arguments(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line without the values of options that are named as secrets (`--api-key X Y`, `--hf-token=X`).

    The word after such an option is its value unless it begins with `--`; further ones are unless they begin with `-`.
    Of other options' values, what `redact_text` removes is removed.
    """
    shown: list[str] = []
    is_secret = False
    for word in argv:
        option, sign, _ = word.partition("=")
        if is_secret and not word.startswith("-" if shown[-1] == REDACTED else "--"):
            shown.append(REDACTED)
            continue
        is_named = _SECRET_OPTION.fullmatch(option) is not None
        is_secret = is_named and not sign
        shown.append(f"{option}={REDACTED}" if is_named and sign else _redact_word(word))
    return tuple(shown)


def _redact_word(word: str) -> str:
    """A word of a command line; of `--option=VALUE` the value by itself, where it is JSON."""
    option, sign, value = word.partition("=")
    shown = _redact_json(value)
    if shown is None:
        return redact_text(word)
    return redact_text(option + sign + shown) if "://" in option else redact_text(option) + sign + shown


def redact_settings(settings: Any) -> Any:  # noqa: ANN401  (any JSON value)
    """Settings of a profile or config without secrets, for plans and artifacts: of `env`, of the JSON in `kv_transfer`,
    of command lines and of every text.

    A secret of `env` leaves 32 bits of its hash: enough to notice a change, too few to recover the secret.
    """
    if isinstance(settings, Mapping):
        return {name: _redact_setting(name, value) for name, value in settings.items()}
    if isinstance(settings, list | tuple):
        words = all(isinstance(each, str) for each in settings)
        return list(redact_arguments(settings) if words else map(redact_settings, settings))
    return redact_text(settings) if isinstance(settings, str) else settings


def _redact_setting(name: str, value: Any) -> Any:  # noqa: ANN401  (any JSON value)
    if name == "env" and isinstance(value, Mapping):
        return _redact_env(value)
    return redact_settings(_redact_keys(value) if name == "kv_transfer" else value)


def _redact_env(environ: Mapping[str, Any]) -> dict[str, Any]:
    """A value that is no text stays: no engine takes it, so settings that were not checked yet alone have one."""
    texts = {name: value for name, value in environ.items() if isinstance(value, str)}
    shown = redact(texts)
    return dict(environ) | {
        name: text if text == texts[name] else f"{text} {hashlib.sha256(texts[name].encode()).hexdigest()[:8]}"
        for name, text in shown.items()
    }


def select_inherited_env(environ: Mapping[str, str]) -> dict[str, str]:
    """What an engine inherits of this process's environment: no variable whose name marks a secret.

    Exceptions are the engine's own settings (ENGINE_PREFIXES) and the names that PASS_ENV lists.
    """
    named = {name.strip() for name in environ.get(PASS_ENV, "").split(",")}
    return {
        name: value
        for name, value in environ.items()
        if name in named or name.startswith(ENGINE_PREFIXES) or not _SECRET_NAME.search(name)
    }
