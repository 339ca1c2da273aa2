"""Where sessions live: committed on success, bounded, shared out again when an instance comes back."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from runners.router.sessions.bindings import Bindings
from tests.examples import examples


def test_a_session_belongs_to_nobody_until_it_is_served_but_its_second_request_sees_the_first() -> None:
    bindings = Bindings()
    assert bindings.count_arrival("s", 0.0) == 0
    assert bindings.find_owner("s") == ""
    bindings.expect_binding("s", "a")
    assert bindings.find_owner("s") == "a", "a sub-agent's request at the same moment follows"
    assert (bindings.count_assigned("a"), bindings.count_active("a")) == (1, 1)
    bindings.drop_expected("s", "a")
    assert bindings.find_owner("s") == "", "it failed there"
    assert (bindings.count_assigned("a"), bindings.count_active("a")) == (0, 0)
    bindings.commit_binding("s", "b", 1.0)
    assert bindings.find_owner("s") == "b"
    assert bindings.count_arrival("s", 2.0) == 1


def test_a_binding_survives_a_failed_try_elsewhere() -> None:
    bindings = Bindings()
    bindings.commit_binding("s", "a", 0.0)
    bindings.expect_binding("s", "b")
    assert bindings.find_owner("s") == "a"
    bindings.drop_expected("s", "b")
    assert bindings.find_owner("s") == "a"
    assert bindings.since_migration_s("s", 9.0) is None


def test_a_migration_is_counted_from_when_it_was_served() -> None:
    bindings = Bindings()
    bindings.commit_binding("s", "a", 1.0)
    bindings.expect_binding("s", "b", migrates=True)
    assert (bindings.find_owner("s"), bindings.moving_to("s")) == ("a", "b")
    assert bindings.since_migration_s("s", 4.0) is None, "not served yet"
    bindings.commit_binding("s", "b", 5.0, migrates=True)
    assert (bindings.find_owner("s"), bindings.moving_to("s")) == ("b", "")
    bindings.drop_expected("s", "b", migrates=True)
    bindings.commit_binding("s", "b", 8.0)
    assert bindings.since_migration_s("s", 9.0) == 4.0
    assert (bindings.count_assigned("a"), bindings.count_active("a")) == (1, 0)


def test_a_request_that_was_open_at_the_migration_does_not_take_its_session_back_but_another_migration_does() -> None:
    bindings = Bindings()
    bindings.commit_binding("s", "a", 0.0)
    bindings.expect_binding("s", "a")
    bindings.expect_binding("s", "b", migrates=True)
    bindings.commit_binding("s", "b", 1.0, migrates=True)
    bindings.commit_binding("s", "a", 2.0)
    assert bindings.find_owner("s") == "b"
    bindings.expect_binding("s", "a", migrates=True)
    bindings.commit_binding("s", "a", 30.0, migrates=True)
    assert bindings.find_owner("s") == "a", "although the first request is still open there"
    assert bindings.since_migration_s("s", 31.0) == 1.0


def test_what_was_open_at_any_instance_at_a_migration_does_not_take_its_session_away_from_the_target() -> None:
    bindings = Bindings()
    bindings.expect_binding("s", "b")  # the first request, still open there
    bindings.expect_binding("s", "a")
    bindings.commit_binding("s", "a", 1.0)  # another one, served elsewhere
    bindings.expect_binding("s", "c", migrates=True)
    bindings.commit_binding("s", "c", 2.0, migrates=True)
    bindings.commit_binding("s", "b", 3.0)
    assert bindings.find_owner("s") == "c"
    bindings.drop_expected("s", "b")
    bindings.expect_binding("s", "b")
    bindings.commit_binding("s", "b", 4.0)
    assert bindings.find_owner("s") == "b", "one sent after the migration may bind it elsewhere"


def test_a_binding_that_moves_in_another_way_is_no_migration() -> None:
    bindings = Bindings()
    bindings.commit_binding("s", "a", 1.0)
    bindings.commit_binding("s", "b", 5.0)
    assert bindings.since_migration_s("s", 9.0) is None
    assert (bindings.count_assigned("a"), bindings.count_active("a")) == (1, 0)


def test_refusals_count_in_a_row_and_end_with_success() -> None:
    bindings = Bindings()
    bindings.count_arrival("s", 0.0)
    for _ in range(3):
        bindings.count_refusal("s", "a")
    bindings.count_refusal("s", "b")
    assert bindings.find_refusals("s") == {"a": 3, "b": 1}
    bindings.commit_binding("s", "a", 1.0)
    assert bindings.find_refusals("s") == {"b": 1}
    bindings.clear_refusals("s", "b")
    assert bindings.find_refusals("s") == {}


def test_the_session_unused_for_longest_is_forgotten_first() -> None:
    bindings = Bindings(max_sessions=2)
    for place, session in enumerate(("s0", "s1")):
        bindings.commit_binding(session, "a", float(place))
    bindings.count_arrival("s0", 2.0)
    bindings.commit_binding("s2", "a", 3.0)
    assert [bindings.find_owner(f"s{n}") for n in range(3)] == ["a", "", "a"]
    assert bindings.count_active("a") == 2
    assert bindings.count_assigned("a") == 3, "cumulative"


def test_old_bindings_expire_but_not_under_an_open_request() -> None:
    bindings = Bindings(ttl_s=10)
    bindings.commit_binding("busy", "a", 0.0)
    bindings.commit_binding("idle", "a", 0.0)
    bindings.expect_binding("busy", "a")
    assert bindings.expire_sessions(10.0) == 0
    assert bindings.expire_sessions(10.1) == 1
    assert bindings.find_owner("busy") == "a"


def test_the_sessions_of_a_lost_instance_have_no_owner() -> None:
    bindings = Bindings()
    bindings.commit_binding("s", "a", 0.0)
    bindings.commit_binding("t", "b", 0.0)
    assert bindings.release_instance("a") == ("s",)
    assert (bindings.find_owner("s"), bindings.find_owner("t")) == ("", "b")
    bindings.commit_binding("s", "b", 5.0)
    assert bindings.since_migration_s("s", 6.0) is None, "it lost its KV: nothing was moved"


def test_a_recovered_instance_gets_its_even_share_of_the_longest_unused() -> None:
    bindings = Bindings()
    for n in range(12):
        bindings.commit_binding(f"s{n}", "ab"[n % 2], float(n))
    moved = bindings.rebalance_sessions("c", ["a", "b", "c"])
    assert Counter(bindings.find_owner(f"s{n}") for n in range(12)) == {"a": 4, "b": 4, "c": 4}
    assert set(moved) == {"s0", "s1", "s2", "s3"}
    assert bindings.rebalance_sessions("c", ["a", "b", "c"]) == (), "it has its share"


def test_a_request_that_was_open_at_the_rebalance_does_not_take_its_session_back() -> None:
    bindings = Bindings()
    bindings.commit_binding("s", "a", 0.0)
    bindings.commit_binding("t", "a", 0.0)
    bindings.expect_binding("s", "a")
    assert bindings.rebalance_sessions("b", ["a", "b"]) == ("s",)
    bindings.commit_binding("s", "a", 2.0)
    bindings.drop_expected("s", "a")
    assert bindings.find_owner("s") == "b"
    bindings.commit_binding("s", "a", 3.0)
    assert bindings.find_owner("s") == "a", "a later request may"


def test_requests_without_a_session_leave_nothing_behind() -> None:
    bindings = Bindings()
    bindings.count_arrival("", 0.0)
    bindings.expect_binding("", "a")
    bindings.commit_binding("", "a", 0.0)
    bindings.drop_expected("", "a")
    assert len(bindings) == 0
    assert bindings.count_assigned("a") == 0


class Life(RuleBasedStateMachine):
    """Counts agree with owners whatever the order of events."""

    SESSIONS = st.sampled_from(("s0", "s1", "s2", "s3"))
    INSTANCES = st.sampled_from(("a", "b", "c"))

    def __init__(self) -> None:
        super().__init__()
        self.bindings = Bindings(max_sessions=3, ttl_s=20)
        self.now = 0.0

    @rule(session=SESSIONS, step=st.floats(0, 9))
    def arrive(self, session: str, step: float) -> None:
        self.now += step
        self.bindings.count_arrival(session, self.now)

    @rule(session=SESSIONS, instance=INSTANCES)
    def expect(self, session: str, instance: str) -> None:
        self.bindings.expect_binding(session, instance)

    @rule(session=SESSIONS, instance=INSTANCES)
    def drop(self, session: str, instance: str) -> None:
        self.bindings.drop_expected(session, instance)

    @rule(session=SESSIONS, instance=INSTANCES)
    def commit(self, session: str, instance: str) -> None:
        self.bindings.commit_binding(session, instance, self.now)

    @rule(instance=INSTANCES)
    def lose(self, instance: str) -> None:
        self.bindings.release_instance(instance)

    @rule(instance=INSTANCES)
    def rebalance(self, instance: str) -> None:
        self.bindings.rebalance_sessions(instance, ("a", "b", "c"))

    @invariant()
    def counts_agree(self) -> None:
        owners = Counter(self.bindings.find_owner(f"s{n}") for n in range(4))
        for instance in "abc":
            assert self.bindings.count_active(instance) == owners[instance]
            assert self.bindings.count_assigned(instance) >= self.bindings.count_active(instance)


Life.TestCase.settings = settings(max_examples=examples(30), stateful_step_count=25, deadline=None)
TestLife = Life.TestCase
