"""What becomes of a batch that cannot be published or recorded; broker and database are stand-ins.

Broker and database are stand-ins.
"""

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from typing import Any

import pytest

from celery_sqlbeat.beat.dispatch import Dispatcher
from celery_sqlbeat.beat.duties import in_thread
from celery_sqlbeat.beat.recording import Answer, PublishRecorder
from celery_sqlbeat.beat_schedule.custom_schedule import ScheduleQuestions
from celery_sqlbeat.errors import DatabaseBusy, DatabaseUnavailable, DatabaseUncertain, StoreError
from celery_sqlbeat.model import Claim, Claimable, Claimed, DueBatch, DueJob, Plan
from celery_sqlbeat.model.claim_orders import ChosenOrder
from celery_sqlbeat.model.lifecycle import CANCELLED, CANNOT_BE_PUBLISHED, DISPATCHED, DLQ, RETRY, SCHEDULED, Ending
from celery_sqlbeat.publish.publisher import Published, Refused, Sending
from celery_sqlbeat.publish.sender import Sent
from celery_sqlbeat.store.records import EVERY_SHARE, Guard, Recorded, Release
from tests.support.claims import claim
from tests.support.stock import untyped


def due_row(job_id: str) -> Any:
    """Return what the dispatcher reads of a due job."""
    facts: dict[str, Any] = dict.fromkeys(DueJob._fields)
    return DueJob(
        **{**facts, "job_id": job_id, "job_name": job_id, "now": datetime(2026, 6, 1, 12, tzinfo=timezone.utc)}
    )


class House:
    """The store, the publisher, the standing and the code in one: remembers what was written."""

    def __init__(self, *claims: Claim) -> None:
        self.time = 0.0
        self.name = "beat-1"
        self.by_run: dict[str, Claim] = {}
        self.waiting = list(claims)
        self.claimable = Claimable()
        self.questions = ScheduleQuestions()
        self.claimed = 0
        self.dispatched: list[Claim] = []
        self.published: list[Claim] = []
        self.released: list[tuple[Claim, float]] = []
        self.cancelled: list[Claim] = []
        self.failed: list[tuple[Claim, Ending]] = []
        self.declines = self.cannot_be_made = False
        self.refuses: str | None = None
        self.raises: Exception | None = None
        self.sent: list[Claim] = []
        self.marks = 0  # statements
        self.takes_forgotten = True
        self.has_workers = False
        self.told: dict[str, Any] = {}
        self.heard: list[Any] = []
        self.locked: set[str] = set()  # run ids, of claims whose rows somebody keeps locked
        self.lost: set[str] = set()
        self.refusal: StoreError = StoreError("out of range")
        self.poison: str | None = None  # a run id; a statement about it fails
        me: Any = self
        self.begun: list[int] = []  # messages that were sent before, by each mark
        self.answers_out = 0  # of marks that nobody has waited for yet
        self.recorder = PublishRecorder(me, me, lambda: self.time, begin=self._begin)
        self.rows: list[Any] = [due_row("00")]
        self.kept_locked: set[str] = set()  # ids of jobs
        self.own_share = EVERY_SHARE
        self.read: list[tuple[str, set[str]]] = []  # the shares that were read, and what was left out
        self.sizes: list[int] = []  # how many jobs were asked for
        self.planned: list[list[str]] = []
        self.dispatcher = Dispatcher(me, me, me, me, me, self.recorder, 500, 15.0, lambda: self.time)

    def due(self, batch_size: int, claimable: Any, share: str, besides: set[str]) -> DueBatch:
        self.read.append((share, set(besides)))
        self.sizes.append(batch_size)
        if self.waiting and not self.rows:
            self.rows = [due_row("00")]
        rows = [row for row in self.rows if row.job_id[-1] in share and row.job_id not in besides]
        return DueBatch(rows[:batch_size])

    def __call__(self, due: DueBatch) -> Plan:
        self.planned.append([row.job_id for row in due.jobs])
        claims, self.waiting = self.waiting, []
        return Plan(claims, [], [], [], [], [])

    def claim(self, due: DueBatch, plan: Plan, beat: str, dispatch_seconds: float) -> Claimed:
        taken = {row.job_id for row in due.jobs} - self.kept_locked
        self.rows = [row for row in self.rows if row.job_id not in taken]
        return Claimed(plan.claims, [], [], {row.job_id for row in due.jobs} - taken, len(taken))

    def share(self) -> str:
        return self.own_share

    def filled(self, claims: list[Claim]) -> list[Claim]:
        return claims

    is_watched = False

    def send(self, claims: Sequence[Claim], until: float, leases: Callable[[str | None], bool]) -> Sending:
        assert until < self.time + 15
        self.sent += claims
        self.by_run |= {each.run_id: each for each in claims}
        if self.refuses == "by an error":
            raise RuntimeError(self.refuses)
        return lambda: self._settle(claims)

    def _settle(self, claims: Sequence[Claim]) -> Published:
        if self.refuses == "by an error later":
            raise RuntimeError(self.refuses)
        if self.declines:
            return Published([], [], [(each, "apply_entry sent nothing") for each in claims], [])
        if self.cannot_be_made:
            return Published([], [], [], [Refused(each, "TypeError: y()", "Traceback ...") for each in claims])
        if self.refuses:
            return Published([], [(each, self.refuses) for each in claims], [], [])
        is_leased = self.leases("default")
        return Published(
            [Sent(each, "default", each.exclusive and is_leased, 0.0, None) for each in claims], [], [], []
        )

    def fire(self) -> None:
        """Fire one batch, and wait for it."""
        self.dispatcher.fire()
        self.dispatcher.finish()

    def tell(self, key: str, ask: Any) -> None:
        self.told[key] = ask

    def say_alive(self) -> None:
        self.heard.append({key: ask() for key, ask in self.told.items()})

    def unleasable(self) -> frozenset[str]:
        return frozenset()

    def leases(self, queue: str | None) -> bool:
        return self.has_workers

    def _answer(self) -> None:
        if self.raises is not None:
            raise self.raises

    def _mark(self, marks: list[Claim], claims: list[Claim]) -> Recorded:
        self.marks += 1
        self._answer()
        if marks is self.dispatched and not self.takes_forgotten:
            raise StoreError("permission denied")
        if self.poison in {each.run_id for each in claims}:
            raise self.refusal
        free = [each for each in claims if each.run_id not in self.locked]
        marks.extend(free)
        return Recorded(_ids(free), _ids(claims) & self.locked - self.lost)

    def _begin(self, statement: Answer) -> Answer:
        """Begin a mark, which here is made when it is waited for."""

        def answer() -> Recorded:
            self.answers_out -= 1
            return statement()

        self.begun.append(len(self.sent))
        self.answers_out += 1
        return answer

    def finish(self, releases: list[Release], guard: Guard) -> Recorded:
        assert guard is Guard.UNSTARTED
        claims, endings = [self.by_run[end.run_id] for end in releases], [end.ending for end in releases]
        state = endings[0].state
        if state == DISPATCHED:
            return self._mark(self.dispatched, claims)
        if state == CANCELLED:
            return self.cancel(claims)
        if state == SCHEDULED:
            return self.release_claims(claims, endings[0].retry_seconds or 0.0)
        return self.fail(list(zip(claims, endings, strict=True)))

    def mark_published(self, published: list[tuple[Claim, float]]) -> Recorded:
        return self._mark(self.published, [each for each, _ in published])

    def cancel(self, claims: list[Claim]) -> Recorded:
        self.cancelled += claims
        return Recorded(_ids(claims), set())

    def fail(self, refused: list[tuple[Claim, Ending]]) -> Recorded:
        self.failed += refused
        return Recorded(_ids([each for each, _ in refused]), set())

    def release_claims(self, claims: list[Claim], seconds: float) -> Recorded:
        self._answer()
        self.released += [(each, seconds) for each in claims]
        return Recorded(_ids(claims), set())


def _ids(claims: Sequence[Claim]) -> set[str]:
    return {claim.run_id for claim in claims}


def waits(house: House) -> bool:
    """Whether something is to be recorded later."""
    return house.recorder.seconds_left is not None


def test_a_queue_with_workers_of_this_package_is_leased_and_another_is_not() -> None:
    house = House(one := claim())
    house.fire()
    assert (house.dispatched, house.published) == ([one], [])
    house.waiting, house.has_workers = [another := claim()], True
    house.fire()
    assert (house.dispatched, house.published) == ([one], [another])


@pytest.mark.parametrize("refuses", ["no such exchange", "by an error", "by an error later"])
def test_what_no_broker_takes_is_given_back_for_longer_and_longer_up_to_ten_seconds(refuses: str) -> None:
    house, one = House(), claim()
    house.refuses = refuses
    for _ in range(20):
        house.waiting = [one]
        house.fire()
    waits = [seconds for _, seconds in house.released]
    assert len(waits) == 20 and 0.5 <= waits[0] <= 1.0 and 5 <= waits[-1] <= 10
    assert all(min(2**n, 10) / 2 <= seconds <= 10 for n, seconds in enumerate(waits))
    house.refuses, house.waiting = None, [one]
    house.fire()
    house.refuses, house.waiting = refuses, [one]
    house.fire()
    assert house.released[-1][1] <= 1.0


def test_a_beat_tells_of_a_job_that_was_refused_three_times_in_a_row_and_no_longer_once_it_was_sent() -> None:
    house, one = House(), claim(name="nightly")
    refused = house.told["refused"]
    for times, refuses in enumerate(["no such exchange", None, "no such exchange", "no such exchange"]):
        house.refuses, house.waiting, house.time = refuses, [one], float(times)
        house.fire()
        assert refused() == {}
    house.refuses, house.cannot_be_made, house.waiting = None, True, [one]
    house.fire()
    assert [[*each["refused"]] for each in house.heard] == [["nightly"]]  # at once
    house.time += 2
    assert refused() == {"nightly": {"times": 3, "error": "TypeError: y()", "seconds_ago": 2.0}}
    house.time += 600
    assert refused() == {}
    house.time, house.waiting = 5.0, [one]
    house.fire()
    assert refused()["nightly"]["times"] == 4
    house.cannot_be_made, house.waiting = False, [one]
    house.fire()
    assert refused() == {}


def test_what_no_message_can_be_made_of_fails_with_backoff_and_ends_as_a_dead_letter() -> None:
    house, one = House(), claim()
    house.cannot_be_made = True
    for failures in range(4):
        house.waiting = [one._replace(slot=one.slot._replace(failures=failures), max_retries=3)]
        house.fire()
    endings = [ending for _, ending in house.failed]
    assert [(ending.state, ending.failures) for ending in endings] == [(RETRY, 1)] * 3 + [(DLQ, 1)]
    for number, ending in enumerate(endings[:3]):
        assert ending.retry_seconds is not None and ending.retry_seconds <= 2.0 * 2.0**number
    assert {(ending.reason, ending.error, ending.traceback) for ending in endings} == {
        (CANNOT_BE_PUBLISHED, "TypeError: y()", "Traceback ...")
    }
    assert not house.released and not house.dispatched and not house.published


def test_what_the_shop_did_not_want_to_send_is_not_tried_again() -> None:
    house = House(one := claim())
    house.declines = True
    house.fire()
    assert house.cancelled == [one] and not house.released


def test_what_was_published_is_recorded_as_soon_as_the_database_is_back() -> None:
    house = House(one := claim())
    house.raises = DatabaseUnavailable("away")
    with pytest.raises(DatabaseUnavailable):
        house.fire()
    house.time = 100.0  # long past the dispatch timeout; as long as nobody has taken it, it is not sent twice
    house.waiting = [claim()]
    with pytest.raises(DatabaseUnavailable):
        house.fire()
    assert len(house.waiting) == 1  # and nothing is claimed before
    house.raises = None
    house.recorder.record()
    assert house.dispatched == [one]
    house.recorder.record()
    assert house.dispatched == [one]


def test_what_the_database_refuses_to_record_does_not_stop_a_beat_for_ever() -> None:
    house = House(claim())
    house.raises = StoreError("permission denied")
    house.fire()
    house.time = 14.0
    house.recorder.record()
    assert waits(house)
    house.time = 16.0
    house.recorder.record()
    assert not waits(house)
    house.raises, house.waiting = None, [another := claim()]
    house.fire()
    assert house.dispatched == [another]


@pytest.mark.parametrize("refusal", [StoreError("out of range"), DatabaseUncertain("nobody knows this")])
def test_what_is_refused_is_halved_down_to_the_claim_to_blame(refusal: StoreError) -> None:
    house = House(*(claims := [claim() for _ in range(9)]))
    house.refusal = refusal
    house.poison = claims[5].run_id
    house.fire()
    for _ in range(4):
        house.recorder.record()
    assert {each.run_id for each in house.dispatched} == {each.run_id for each in claims} - {house.poison}
    house.waiting = [another := claim()]
    house.fire()
    assert another in house.dispatched


def test_a_claim_whose_row_is_locked_is_recorded_later_and_stops_no_other() -> None:
    house = House(locked := claim(), free := claim())
    house.locked = {locked.run_id}
    house.fire()
    assert house.dispatched == [free]
    for house.time in (1.0, 100.0, 200.0):  # though its time is over: as long as nobody has taken it
        house.waiting = [another := claim()]
        house.fire()
        assert house.dispatched[-1] == another
    assert 0.0 < (house.recorder.seconds_left or 0.0) <= 1.0
    house.time, house.locked = 300.0, set()
    house.recorder.record()
    assert house.dispatched[-1] == locked and not waits(house)


def test_a_claim_that_was_lost_while_its_row_was_locked_is_not_told_of_again() -> None:
    house = House(locked := claim())
    house.locked = {locked.run_id}
    house.fire()
    house.time, house.lost = 5.0, {locked.run_id}
    house.recorder.record()
    assert not waits(house) and not house.dispatched


def test_a_database_that_is_busy_is_told_again_and_nothing_is_raised() -> None:
    house = House(one := claim(), other := claim())
    house.raises = DatabaseBusy("the file is locked")
    house.fire()
    assert waits(house)
    house.time, house.raises = 1.0, None
    house.recorder.record()
    assert house.dispatched == [one, other]


def test_nothing_more_is_claimed_beside_much_that_cannot_be_recorded() -> None:
    house = House(*[claim() for _ in range(1000)])
    house.raises = DatabaseBusy("the file is locked")
    house.fire()
    house.waiting = [claim()]
    assert not house.dispatcher.fire().something and house.waiting


def test_the_end_of_a_beat_is_not_held_up_by_what_cannot_be_recorded() -> None:
    house = House(claim())
    house.raises = StoreError("permission denied")
    house.fire()
    house.dispatcher.hand_over()
    assert house.dispatched == []


@pytest.mark.parametrize("error", [OverflowError("Python int too large"), DatabaseUnavailable("away")])
def test_no_error_keeps_a_beat_from_its_end(error: Exception) -> None:
    house = House(claim())
    house.dispatcher.fire()
    house.raises = error
    house.dispatcher.hand_over()


def test_a_batch_is_recorded_while_the_broker_confirms_the_next_one() -> None:
    house = House(one := claim())
    house.dispatcher.fire()
    house.waiting = [another := claim()]
    assert (house.sent, house.dispatched) == ([one], [])
    house.dispatcher.fire()
    assert (house.sent, house.dispatched) == ([one, another], [one])
    house.dispatcher.finish()
    assert house.dispatched == [one, another]


def test_a_batch_is_being_recorded_while_the_next_one_is_sent() -> None:
    house = House(claim())
    house.dispatcher.fire()
    house.waiting = [claim()]
    house.dispatcher.fire()
    assert (len(house.sent), house.begun) == (2, [1])


@pytest.mark.parametrize("error", [None, DatabaseUnavailable("away"), ZeroDivisionError()])
def test_a_mark_in_a_thread_has_its_outcome_where_it_is_awaited(error: Exception | None) -> None:
    recorded, threads = Recorded({"run"}, set()), list[threading.Thread]()

    def mark() -> Recorded:
        threads.append(threading.current_thread())
        if error is not None:
            raise error
        return recorded

    answer = in_thread(mark)
    if error is None:
        assert answer() is recorded
    else:
        with pytest.raises(type(error)):
            answer()
    assert threads != [threading.current_thread()]


def test_a_mark_that_failed_is_made_again_and_one_that_succeeded_is_not() -> None:
    house = House(one := claim())
    house.dispatcher.fire()
    house.raises = DatabaseUnavailable("away")
    with pytest.raises(DatabaseUnavailable):
        house.dispatcher.finish()
    house.raises = None
    house.recorder.record()
    assert (house.marks, house.dispatched) == (2, [one])
    house.recorder.record()
    assert house.marks == 2


def test_an_answer_that_is_out_is_waited_for_though_the_one_before_it_was_an_error() -> None:
    house = House(leased := claim(), forgotten := claim()._replace(exclusive=False))
    house.has_workers = True
    house.dispatcher.fire()
    house.raises = DatabaseUnavailable("away")
    with pytest.raises(DatabaseUnavailable):
        house.dispatcher.finish()
    assert house.answers_out == 1
    house.raises = None
    house.recorder.record()
    assert house.answers_out == 0
    assert (house.published, house.dispatched) == ([leased], [forgotten])


def test_what_cannot_be_recorded_keeps_nothing_else_from_being_recorded() -> None:
    house = House(leased := claim(), claim()._replace(exclusive=False))
    house.has_workers = True
    house.dispatcher.fire()
    house.time, house.takes_forgotten = 16.0, False
    house.dispatcher.finish()
    assert (house.published, house.dispatched, house.answers_out) == ([leased], [], 0)


def test_two_batches_wait_for_the_database_where_it_went_away_between_them() -> None:
    house = House(one := claim())
    house.dispatcher.fire()
    house.waiting, house.raises = [another := claim()], DatabaseUnavailable("away")
    with pytest.raises(DatabaseUnavailable):
        house.dispatcher.fire()
    house.dispatcher.await_confirms()
    house.raises = None
    house.recorder.record()
    assert house.dispatched == [one, another]


def crowd(house: House, amount: int) -> list[str]:
    """Let so many jobs be due, evenly over the shares; return their ids."""
    house.rows = [due_row(f"{number:04x}") for number in range(amount)]
    return [row.job_id for row in house.rows]


def test_of_a_crowd_each_beat_plans_its_own_share() -> None:
    house = House()
    ids = crowd(house, 2000)
    house.own_share = "0123"
    while house.dispatcher.fire().more:
        pass
    assert [job_id for batch in house.planned for job_id in batch] == [job_id for job_id in ids if job_id[-1] in "0123"]
    assert [share for share, _ in house.read] == [EVERY_SHARE, "0123"]


def test_the_order_of_the_store_reads_no_more_than_a_batch() -> None:
    house = House()
    crowd(house, 600)
    house.dispatcher.fire()
    assert house.sizes == [500]


def test_another_order_chooses_from_some_batches_and_leaves_nothing_out() -> None:
    house = House()
    me: Any = house
    ids = crowd(house, 1500)
    by_last_digit = ChosenOrder("priority")
    by_last_digit._order = lambda due: sorted(due, key=lambda each: each.job_id[-1])
    house.dispatcher = Dispatcher(
        me, me, me, me, me, house.recorder, 500, 15.0, lambda: house.time, order=by_last_digit
    )
    while house.dispatcher.fire().more:
        pass
    assert set(house.sizes) == {2000}
    assert house.planned[0] == sorted(ids, key=lambda job_id: job_id[-1])[:500]
    assert sorted(job_id for batch in house.planned for job_id in batch) == ids


def test_the_rest_of_a_crowd_is_left_to_the_others_once() -> None:
    house = House()
    ids = crowd(house, 600)
    house.own_share = "0123"
    while house.dispatcher.fire().more:
        pass
    assert not house.dispatcher.fire().something
    house.rows = house.rows[:40]  # the others have gone on meanwhile
    assert house.dispatcher.fire().something
    assert len(house.planned[-1]) == 40
    assert not house.rows and len(ids) == 600


def test_what_the_others_have_not_taken_is_left_to_them_once_and_then_claimed() -> None:
    house = House()
    ids = crowd(house, 500)
    house.own_share = "g"  # of which no job is
    result = house.dispatcher.fire()
    assert (result.something, result.more, house.planned) == (False, False, [[]])
    assert house.dispatcher.fire().something
    assert house.planned[1] == ids


def test_a_beat_that_is_alone_takes_a_crowd_in_whole_batches() -> None:
    house = House()
    ids = crowd(house, 1200)
    while house.dispatcher.fire().more:
        pass
    assert [job_id for batch in house.planned for job_id in batch] == ids
    assert [len(batch) for batch in house.planned] == [500, 500, 200]


def test_locked_rows_that_fill_a_batch_do_not_hide_what_is_due_after_them() -> None:
    house = House()
    ids = crowd(house, 1100)
    house.kept_locked = set(ids[:1000])
    while house.dispatcher.fire().more:
        pass
    assert {row.job_id for row in house.rows} == house.kept_locked
    house.dispatcher.fire()
    assert house.read[-1][1] == set(), "the next look tries them again"


def test_jobs_whose_arguments_this_beat_cannot_open_hide_none_that_are_due_after_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    house = House()
    ids = crowd(house, 701)
    locked = set(ids[:700])
    house.kept_locked = locked
    plan, claim_them = house.dispatcher._plan, house.claim

    def claim_none_of_them(*asked: Any) -> Claimed:
        return claim_them(*asked)._replace(missed=set())  # nothing was planned of them, so nothing was missed

    untyped(house).claim = claim_none_of_them
    house.dispatcher._plan = lambda due: plan(due)._replace(locked=[row for row in due.jobs if row.job_id in locked])
    for _ in range(2):
        house.dispatcher.fire()
    assert {row.job_id for row in house.rows} == locked, "the one after them was claimed, and they stay as they are"
    (told,) = [record.getMessage() for record in caplog.records if "no key" in record.getMessage()]
    assert f"500 due jobs wait, as {ids[0]}" in told and "sqlbeat_payload_key" in told
    house.time = 601.0
    house.dispatcher.fire()
    assert sum("no key" in record.getMessage() for record in caplog.records) == 2, "it is told again, but rarely"
