"""Every byte that a connection counts is given back once, at whichever stage its request ends."""

from __future__ import annotations

import pytest

from runners.router.server.held_bytes import KEY_BYTES, HeldBytes, measure_head


class Total:
    held_limit_bytes = 2_000
    held_bytes = 0


@pytest.fixture
def total() -> Total:
    return Total()


def test_a_request_counts_from_its_head_to_its_end(total: Total) -> None:
    held = HeldBytes(total)
    assert held.count_head(100, headers=2)
    head_bytes = total.held_bytes
    assert head_bytes > 100
    total.held_bytes += 50
    held.serving_bytes = held.end_arrival(50)
    assert (held.head_bytes, held.serving_bytes, total.held_bytes) == (0, head_bytes + 50, head_bytes + 50)
    held.end_serving()
    held.end_serving()
    assert total.held_bytes == 0


def test_a_head_that_is_too_much_counts_until_its_request_is_dropped(total: Total) -> None:
    held = HeldBytes(total)
    assert not held.count_head(2_000, headers=1)
    assert total.held_bytes > total.held_limit_bytes
    held.drop_arrival(0)
    assert total.held_bytes == 0


def test_what_waits_is_served_or_is_unsent_goes_with_the_connection(total: Total) -> None:
    total.held_bytes = 7 + 30 + 20
    held = HeldBytes(total, ahead_bytes=30, serving_bytes=20)
    held.count_unsent(10)
    held.close()
    held.drop_unsent()
    assert total.held_bytes == 7, "the share of other connections"


def test_what_is_unsent_counts_once_however_often_it_is_measured(total: Total) -> None:
    held = HeldBytes(total)
    held.count_unsent(300)
    held.count_unsent(500)
    assert total.held_bytes == 500
    held.close()
    assert total.held_bytes == 0


@pytest.mark.parametrize("leaves", [True, False])
def test_a_body_that_a_thread_reads_counts_until_it_is_returned(total: Total, leaves: bool) -> None:
    total.held_bytes = 40
    held = HeldBytes(total, serving_bytes=40)
    held.lend_body(40)
    if leaves:
        held.close()
    assert total.held_bytes == 40
    held.return_body(40)
    if not leaves:
        held.end_serving()
    assert total.held_bytes == 0


def test_the_keys_of_a_prompt_count_until_its_request_ends(total: Total) -> None:
    held = HeldBytes(total)
    held.count_keys(10)
    assert held.serving_bytes == total.held_bytes == 10 * KEY_BYTES
    held.end_serving()
    assert total.held_bytes == 0


def test_a_head_is_measured_as_it_came() -> None:
    head = b"POST /v1/completions?a=1 HTTP/1.1\r\nhost: x\r\nx-a: bc\r\n\r\n"
    assert measure_head(b"POST", b"/v1/completions?a=1", [(b"host", b"x"), (b"x-a", b"bc")]) == len(head)
