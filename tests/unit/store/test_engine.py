"""Units of work: what is tried again, settled by reading, or given up, and after how long."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.errors import DatabaseBusy, DatabaseUnavailable, DatabaseUncertain, StoreError, TransientError
from celery_sqlbeat.store.faults import AGAIN, AWAY, SLOW, WAITS, Breaker, Fault
from celery_sqlbeat.store.sql.engine import Conflict, Database


class DriverError(Exception):
    """What the driver of this test raises."""

    def __init__(self, fault: Fault) -> None:
        super().__init__("what the driver said")
        self.fault = fault


class Script:
    """A dialect and its sessions: notes what is asked of it, and fails as it is told."""

    name = "script"
    errors = (DriverError,)
    single_statements_commit = True
    sessions_survive_fork = True
    at_once: frozenset[str] = frozenset()

    def __init__(self, **failing: list[Fault | None]) -> None:
        self.log: list[str] = []
        self._failing: dict[str, Iterator[Fault | None]] = {step: iter(faults) for step, faults in failing.items()}

    def _do(self, step: str) -> None:
        self.log.append(step)
        fault = next(self._failing.get(step, iter(())), None)
        if fault is not None:
            raise DriverError(fault)

    def connect(self) -> Any:
        self._do("connect")
        return self

    def begin(self) -> None:
        self._do("begin")

    def commit(self) -> None:
        self._do("commit")

    def rollback(self) -> None:
        self._do("rollback")

    def close(self) -> None:
        self.log.append("close")

    def fetch(self, name: str, rows: object = None, /, **_: object) -> list[tuple[str]]:
        self._do(name)
        return [(name,)]

    def is_spent(self, session: object) -> bool:
        return False

    def classify(self, error: BaseException) -> Fault:
        return error.fault if isinstance(error, DriverError) else Fault.FATAL

    def explain(self, error: BaseException) -> str:
        return str(error)


class Timed:
    """A database on a script, whose sleeps are noted and take no time."""

    def __init__(self, script: Script, **options: Any) -> None:
        self.slept: list[float] = []
        options = {"sleep": self.slept.append, "rnd": lambda: 1.0, **options}
        self.database = Database(cast(Any, script), **options)

    def write(self, settle: Callable[[Any], Any] | None = None) -> Any:
        return self.database.write(lambda session: session.fetch("work"), settle)


def test_to_construct_opens_nothing() -> None:
    script = Script()
    Timed(script)
    assert script.log == []


def test_work_is_one_transaction() -> None:
    script = Script()
    assert Timed(script).write() == [("work",)]
    assert script.log == ["connect", "begin", "work", "commit"]


def test_a_single_statement_needs_no_transaction() -> None:
    script = Script()
    Timed(script).database.fetch("work")
    assert script.log == ["connect", "work"]


def test_where_a_single_statement_does_not_commit_it_gets_a_transaction() -> None:
    script = Script()
    script.single_statements_commit = False
    Timed(script).database.fetch("work")
    assert script.log == ["connect", "begin", "work", "commit"]


@pytest.mark.parametrize(
    ("happened", "answer"), [([("found",)], [("found",)]), (None, [("work",)])], ids=["happened", "did not happen"]
)
def test_a_single_statement_without_an_answer_is_settled_by_reading(happened: Any, answer: list[tuple[str]]) -> None:
    script = Script(work=[Fault.LOST])
    database = Timed(script).database
    assert database.fetch("work", None, lambda session: session.fetch("look") and happened) == answer
    assert script.log == ["connect", "work", "close", "connect", "look", *(["work"] if happened is None else [])]


def test_a_deadlock_is_rolled_back_and_repeated_at_once_on_the_same_session() -> None:
    script = Script(work=[Fault.DEADLOCK])
    timed = Timed(script)
    timed.write()
    assert script.log == ["connect", "begin", "work", "rollback", "begin", "work", "commit"]
    assert sum(timed.slept) <= WAITS[Fault.DEADLOCK][1]


def test_a_lost_connection_is_closed_and_the_work_repeated_on_a_new_one() -> None:
    script = Script(work=[Fault.LOST])
    Timed(script).write()
    assert script.log == ["connect", "begin", "work", "close", "connect", "begin", "work", "commit"]


def test_a_session_whose_rollback_fails_is_closed() -> None:
    script = Script(work=[Fault.TRANSIENT], rollback=[Fault.LOST])
    Timed(script).write()
    assert script.log == ["connect", "begin", "work", "rollback", "close", "connect", "begin", "work", "commit"]


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.AMBIGUOUS, Fault.UNKNOWN])
def test_a_commit_without_an_answer_that_happened_is_found_by_reading(fault: Fault) -> None:
    script = Script(commit=[fault])
    assert Timed(script).write(settle=lambda session: session.fetch("look") and "found") == "found"
    assert script.log == ["connect", "begin", "work", "commit", "close", "connect", "look"]


def test_a_commit_without_an_answer_that_did_not_happen_is_repeated() -> None:
    script = Script(commit=[Fault.LOST])
    assert Timed(script).write(settle=lambda session: session.fetch("look") and None) == [("work",)]
    assert script.log.count("work") == 2
    assert script.log[-4:] == ["look", "begin", "work", "commit"]


def test_the_question_is_asked_again_when_it_is_cut_off_itself() -> None:
    script = Script(commit=[Fault.LOST], look=[Fault.LOST, None])
    assert Timed(script).write(settle=lambda session: session.fetch("look") and "found") == "found"
    assert script.log.count("work") == 1


def test_a_commit_that_was_refused_needs_no_question() -> None:
    script = Script(commit=[Fault.DEADLOCK])
    Timed(script).write(settle=lambda session: session.fetch("look"))
    assert "look" not in script.log
    assert script.log.count("commit") == 2


def test_what_was_lost_before_the_commit_needs_no_question() -> None:
    script = Script(work=[Fault.LOST])
    Timed(script).write(settle=lambda session: session.fetch("look"))
    assert "look" not in script.log


def test_after_an_error_that_nobody_knows_the_session_is_another_one_and_the_work_is_repeated() -> None:
    script = Script(work=[Fault.UNKNOWN])
    Timed(script).write()
    assert script.log == ["connect", "begin", "work", "close", "connect", "begin", "work", "commit"]


def test_an_error_that_nobody_knows_and_that_stays_says_that_the_database_answers() -> None:
    script = Script(work=[Fault.UNKNOWN] * 1000)
    timed = Timed(script, patience=0.0)
    for _ in range(3):
        with pytest.raises(DatabaseUncertain, match="what the driver said"):
            timed.write()
    timed.database.fetch("other")


def test_without_a_connection_an_error_that_nobody_knows_says_that_the_database_is_away() -> None:
    script = Script(connect=[Fault.UNKNOWN] * 100)
    timed = Timed(script, patience=0.0)
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable):
            timed.write()
    with pytest.raises(DatabaseUnavailable):
        timed.write()
    assert set(script.log) == {"connect"}


def test_a_fatal_error_is_not_repeated() -> None:
    script = Script(work=[Fault.FATAL])
    with pytest.raises(StoreError, match="what the driver said") as caught:
        Timed(script).write()
    assert not isinstance(caught.value, DatabaseUnavailable)
    assert script.log == ["connect", "begin", "work", "rollback"]


def test_a_conflict_is_told_apart_and_not_repeated() -> None:
    script = Script(work=[Fault.CONFLICT])
    with pytest.raises(Conflict):
        Timed(script).write()
    assert script.log.count("work") == 1


def test_what_is_no_error_of_the_driver_is_passed_on_and_the_work_undone() -> None:
    script = Script()
    with pytest.raises(ZeroDivisionError):
        Timed(script).database.write(lambda session: 1 // 0)
    assert script.log == ["connect", "begin", "rollback"]


@pytest.mark.parametrize("fault", sorted(AGAIN, key=str))
def test_a_database_that_stays_away_is_given_up_after_the_patience(fault: Fault) -> None:
    clock = [0.0]
    script = Script(work=[fault] * 10_000)

    def sleep(seconds: float) -> None:
        clock[0] += seconds

    kind = DatabaseUnavailable if fault in AWAY else DatabaseBusy
    with pytest.raises(kind, match="what the driver said"):
        Timed(script, sleep=sleep, patience=3.0, clock=lambda: clock[0]).write()
    assert 2 <= script.log.count("work") <= 700
    assert clock[0] <= 3.0 + 2 * WAITS[fault][1]


def test_who_was_silent_for_the_whole_patience_is_not_asked_again_by_the_same_call() -> None:
    clock = [0.0]
    script = Script(work=[Fault.LOST] * 2)
    connect = script.connect

    def slow() -> Any:
        clock[0] += 3.0
        return connect()

    script.connect = slow  # type: ignore[method-assign]
    timed = Timed(script, patience=3.0, clock=lambda: clock[0])
    with pytest.raises(DatabaseUnavailable):
        timed.write(lambda session: session.fetch("look"))
    assert script.log.count("work") == 1 and "look" not in script.log
    with pytest.raises(DatabaseUnavailable):
        timed.write()
    assert clock[0] == 6.0


def test_two_failed_calls_open_the_breaker_and_the_next_hears_at_once() -> None:
    script = Script(connect=[Fault.LOST] * 1000)
    timed = Timed(script, patience=0.0)
    for _ in range(2):
        with pytest.raises(DatabaseUnavailable) as told:
            timed.write()
    asked = len(script.log)
    with pytest.raises(DatabaseUnavailable, match="what the driver said") as at_once:
        timed.write()
    assert len(script.log) == asked
    assert str(at_once.value) == str(told.value), "the same trouble in the same words"


def test_a_probe_tries_only_once_and_its_success_closes_the_breaker() -> None:
    clock = [0.0]
    breaker = Breaker(lambda: clock[0], lambda: 1.0)
    breaker.failed()
    breaker.failed()
    script = Script(connect=[Fault.LOST])
    timed = Timed(script, breaker=breaker)
    clock[0] += 60
    with pytest.raises(DatabaseUnavailable):
        timed.write()
    assert script.log == ["connect"]
    clock[0] += 60
    timed.write()
    assert not breaker.is_open


@pytest.mark.parametrize("fault", sorted(AGAIN - AWAY, key=str))
def test_locks_and_deadlocks_do_not_open_the_breaker(fault: Fault) -> None:
    breaker = Breaker()
    for _ in range(3):
        with pytest.raises(DatabaseBusy) as caught:
            Timed(Script(work=[fault] * 1000), breaker=breaker, patience=0.0).write()
        assert not isinstance(caught.value, DatabaseUnavailable)
    assert not breaker.is_open


def test_who_has_waited_for_a_lock_does_not_wait_for_it_again_in_the_same_call() -> None:
    clock = [0.0]
    script = Script(work=[Fault.TRANSIENT] * 2)
    begin = script.begin

    def slow() -> None:
        clock[0] += 1.5  # a database gives up a lock after half of the patience
        begin()

    script.begin = slow  # type: ignore[method-assign]
    with pytest.raises(DatabaseBusy):
        Timed(script, patience=3.0, clock=lambda: clock[0]).write()
    assert script.log.count("work") == 1


def test_an_answer_that_is_an_error_shows_that_the_database_is_there() -> None:
    breaker = Breaker()
    breaker.failed()
    with pytest.raises(Conflict):
        Timed(Script(work=[Fault.CONFLICT]), breaker=breaker).write()
    breaker.failed()
    assert not breaker.is_open


@pytest.mark.parametrize("heartbeat", [0.3, 1.0, 6.0, 30.0])
@pytest.mark.parametrize("fault", list(WAITS))
@pytest.mark.parametrize("slow", [0, 1, 2, 10**9])
def test_a_call_that_fails_as_slowly_as_it_can_ends_within_a_heartbeat(
    fault: Fault, heartbeat: float, slow: int
) -> None:
    """The first try, the patience, and one last try: each as long as a statement may take.

    None after a silent one.
    """
    settings = read_settings(
        {"sqlbeat_heartbeat_interval": heartbeat, "sqlbeat_dispatch_timeout": max(0.5, heartbeat)}, {}
    )
    now = [0.0]
    tries = [0]

    class Slow(Script):
        def connect(self) -> Any:
            tries[0] += 1
            # Slow at once, or fast as long as it is tried again and slow in the end.
            now[0] += (
                settings.statement_timeout if tries[0] <= slow or now[0] >= settings.statement_timeout * 0.9 else 0
            )
            raise DriverError(fault)

    database = Database(
        cast(Any, Slow()),
        patience=settings.statement_timeout,
        breaker=Breaker(lambda: now[0], longest=settings.heartbeat_interval / 2),
        sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
        rnd=lambda: 1.0,
        clock=lambda: now[0],
    )
    with pytest.raises(TransientError):
        database.read("work")
    assert (tries[0] == 1) == (slow > 0 and fault in SLOW)
    assert now[0] <= 3 * settings.statement_timeout <= settings.heartbeat_interval + 1e-9
    # Whether the breaker opened or not, the next one is asked before the next heartbeat is over.
    assert database._patience.breaker.seconds_to_wait() <= settings.heartbeat_interval / 2
