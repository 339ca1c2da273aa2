"""Which instance stores a response that a later request may continue (`previous_response_id` of `/v1/responses`)."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

RESPONSES_KNOWN = 100_000
"""The oldest are forgotten first; one has some 300 bytes."""


class StoredResponse(NamedTuple):
    """Where a response is."""

    instance: str
    session: str
    """Of the request that it answers; empty = none."""


class StoredResponses:
    """Response id -> where it is, as far as this router has passed it on."""

    def __init__(self, limit: int = RESPONSES_KNOWN) -> None:
        self._limit = limit
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()

    def add_response(self, response: str, instance: str, session: str) -> None:
        self._stored[response] = StoredResponse(instance, session)
        if len(self._stored) > self._limit:
            self._stored.popitem(last=False)

    def find_response(self, response: str) -> StoredResponse | None:
        """None = it is not known here, and no instance is better than another."""
        return self._stored.get(response)
