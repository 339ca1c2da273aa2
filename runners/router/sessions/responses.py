"""The instance of each stored response that a later request may continue (`previous_response_id`, `/v1/responses`)."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

RESPONSES_KNOWN = 100_000
"""Responses remembered, about 300 bytes each; the oldest is dropped first."""


class StoredResponse(NamedTuple):
    """The location of a stored response."""

    instance: str
    session: str
    """The session of the request that it answers; empty = none."""


class StoredResponses:
    """Response id -> its location, for responses that passed through this router."""

    def __init__(self) -> None:
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()

    def add_response(self, response: str, instance: str, session: str) -> None:
        self._stored[response] = StoredResponse(instance, session)
        if len(self._stored) > RESPONSES_KNOWN:
            self._stored.popitem(last=False)

    def find_response(self, response: str) -> StoredResponse | None:
        """None = unknown to this router."""
        return self._stored.get(response)
