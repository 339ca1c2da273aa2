"""The breaker opens on what an instance did, never on what a client did, and always lets it come back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from results.records.router_spec import HealthRules
from runners.router.breaker import Breaker, BreakerState
from runners.router.cluster import Cluster, Member
from runners.router.failure import Failure
from runners.router.health import Health
from tests.runners.router.drivers import SetClock

RULES = HealthRules(failures_to_open=3, unhealthy_after=3, open_s=1.0, open_max_s=8.0)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["fail", "die", "break", "serve", "end", "let go", "probe ok", "probe silent", "probe refused", "send"]
        ),
        st.floats(0.0, 3.0),
    ),
    max_size=60,
)


def step(breaker: Breaker, what: str, now_s: float) -> Breaker:
    match what:
        case "fail":
            return breaker.note_failure(now_s, "500")
        case "die":
            return breaker.note_failure(now_s, "refused", dead=True)
        case "break":
            return breaker.note_failure(now_s, "error event", begun=True)
        case "serve":
            return breaker.note_success()
        case "end":
            return breaker.note_whole()
        case "let go":
            return breaker.release_trial()
        case "send":
            return breaker.note_dispatch() if breaker.lets_pass else breaker
        case _:
            why = "" if what == "probe ok" else what
            return breaker.note_probe(now_s, why, refused=what == "probe refused")


def test_three_failures_in_a_row_open_it_and_a_success_between_does_not_count() -> None:
    twice = Breaker(RULES).note_failure(0, "500").note_failure(0, "500")
    assert twice.lets_pass
    assert twice.note_success().note_failure(0, "500").lets_pass
    assert twice.note_failure(0, "500").state is BreakerState.OPEN


def test_it_half_opens_after_its_time_and_only_once_the_instance_is_well() -> None:
    opened = Breaker(RULES).note_failure(0, "refused", dead=True)
    assert opened.note_probe(0.5, "").state is BreakerState.OPEN
    assert opened.note_probe(1.5, "refused", refused=True).state is BreakerState.OPEN
    assert opened.note_probe(1.5, "").state is BreakerState.HALF_OPEN


def test_half_open_lets_one_trial_through_and_its_first_byte_closes_it() -> None:
    half = Breaker(RULES).note_failure(0, "refused", dead=True).note_probe(2, "")
    assert half.lets_pass
    trying = half.note_dispatch()
    assert not trying.lets_pass
    assert trying.note_success().state is BreakerState.CLOSED
    assert trying.release_trial().lets_pass  # a 4xx proves nothing: another one may try


def test_half_open_takes_a_share_that_doubles_with_every_good_probe() -> None:
    breaker = Breaker(RULES).note_failure(0, "refused", dead=True).note_probe(2, "")
    taken = []
    for second in range(3, 9):
        sent = breaker
        while sent.lets_pass:
            sent = sent.note_dispatch()
        taken.append(sent.trials)
        breaker = breaker.note_probe(second, "")
    assert taken == [1, 2, 4, 8, 16, 32]
    assert breaker.note_failure(9, "500").state is BreakerState.OPEN


def test_responses_that_break_after_their_first_byte_open_it_too() -> None:
    breaker = Breaker(RULES)
    for _ in range(2):
        breaker = breaker.note_success().note_failure(0, "error event", begun=True)
    assert breaker.lets_pass
    assert breaker.note_whole().note_success().note_failure(0, "error event", begun=True).lets_pass
    assert breaker.note_success().note_failure(0, "error event", begun=True).state is BreakerState.OPEN


def test_each_trial_that_fails_doubles_the_wait_up_to_its_limit() -> None:
    breaker, now_s, waits = Breaker(RULES).note_failure(0, "500", dead=True), 0.0, []
    for _ in range(6):
        waits.append(breaker.until_s - now_s)
        now_s = breaker.until_s
        breaker = breaker.note_probe(now_s, "").note_dispatch().note_failure(now_s, "500")
    assert waits == [1, 2, 4, 8, 8, 8]


def test_silent_probes_open_it_and_one_that_answers_starts_the_count_again() -> None:
    silent = Breaker(RULES).note_probe(0, "timeout").note_probe(0, "timeout")
    assert silent.note_probe(0, "").note_probe(0, "timeout").lets_pass
    assert not silent.note_probe(0, "timeout").lets_pass
    assert not Breaker(RULES).note_probe(0, "refused", refused=True).lets_pass


@given(STEPS)
def test_whatever_happened_it_closes_again_once_the_instance_is_well(steps: list[tuple[str, float]]) -> None:
    breaker, now_s = Breaker(RULES), 0.0
    for what, after_s in steps:
        now_s += after_s
        breaker = step(breaker, what, now_s)
    well = breaker.note_probe(now_s + RULES.open_max_s, "")
    while not well.lets_pass:
        well = well.release_trial()
    assert well.note_dispatch().note_success().note_whole() == Breaker(RULES)


@given(STEPS)
def test_clients_alone_never_open_it(steps: list[tuple[str, float]]) -> None:
    breaker = Breaker(RULES)
    for what, after_s in steps:
        if what in ("serve", "end", "let go", "send", "probe ok"):
            breaker = step(breaker, what, after_s)
    assert breaker.state is BreakerState.CLOSED


@given(STEPS)
def test_never_more_trials_are_on_their_way_than_probes_have_earned(steps: list[tuple[str, float]]) -> None:
    breaker, now_s, earned = Breaker(RULES), 0.0, 1
    for what, after_s in steps:
        now_s += after_s
        was = breaker
        breaker = step(breaker, what, now_s)
        if what == "probe ok" and was.state is BreakerState.HALF_OPEN:
            earned *= 2
        elif breaker.state is not BreakerState.HALF_OPEN:
            earned = 1
        assert 0 <= breaker.trials <= earned
        assert breaker.until_s - now_s <= RULES.open_max_s + 1e-9


def test_a_request_that_this_machine_could_not_send_gives_its_trial_back() -> None:
    clock = SetClock(lambda: 10.0)
    cluster = Cluster((Member("a"),), clock.now_s)
    health = Health(cluster, RULES, clock, lambda *_: None, lambda _: None, lambda _: None)
    health.add_instance("a", "connection refused")
    health.note_probe("a", "", gone=False)
    health.note_dispatch("a")
    assert not cluster.may_be_picked("a"), "its trial is under way"
    health.note_failure("a", Failure("own", "too many open files"))
    assert cluster.may_be_picked("a")
