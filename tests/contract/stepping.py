"""Two sessions of one PostgreSQL database, stepped statement by statement.

Each waits before a statement for its turn.

A session that waits for a lock of the other is found out from the server, and the other goes on.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import psycopg

from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.store.faults import Fault
from celery_sqlbeat.store.sql.dialects.postgresql import Postgresql, PostgresqlSession
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.session import Call, Row, Rows

_READ_FOR_A_CLAIM = {"read_outbox", "read_due", "read_attempts"}
READY, BLOCKED, ENDED = "ready", "blocked", "ended"
_LOOK_SECONDS = 0.001  # a statement that takes longer may be waiting for a lock: ask the server
_LOST_SECONDS = 30.0  # a step that takes longer hangs


class Side:
    """One side: a database whose every statement waits for its turn, and the thread using it."""

    def __init__(self, dialect: Postgresql, watch: psycopg.Connection[Row]) -> None:
        self.name = dialect.name
        self.blocks = dialect.blocks
        self.errors = dialect.errors
        self.single_statements_commit = True
        self.at_once = dialect.at_once
        self.sessions_survive_fork = dialect.sessions_survive_fork
        self.is_spent, self.classify, self.explain = dialect.is_spent, dialect.classify, dialect.explain
        self._inner = dialect
        self._watch = watch
        self._go: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._arrived: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._pid = 0
        self.gated = False
        self.passes_over: frozenset[str] = frozenset()  # statements that find nothing, as if the rows were locked
        self.in_transaction = False
        self.deadlocks = 0
        self.at = ENDED
        self.result: object = None
        self.database = Database(self, sleep=lambda _: None)

    def connect(self) -> "SteppedSession":
        """Open a session that asks for its turn.

        Its commits need not reach the disk, and it may wait for long.
        """
        inner = self._inner.connect()
        inner.script(
            "SET synchronous_commit = off; SET plan_cache_mode = force_generic_plan;"
            "SET lock_timeout = 0; SET statement_timeout = 0"
        )
        self._pid = inner._connection.info.backend_pid
        return SteppedSession(inner, self)

    def begin(self, work: Callable[[], object]) -> None:
        """Start to work, up to the first statement."""
        self.in_transaction, self.deadlocks, self.result = False, 0, None

        def run() -> None:
            self.gated = True
            try:
                self.result = work()
            except StoreError as error:
                self.result = f"{type(error).__name__}: {error}"
            except BaseException as error:
                self.result = error
            finally:
                self.gated = self.in_transaction = False
                self._arrived.put(ENDED)

        threading.Thread(target=run, daemon=True).start()
        self.settle()

    def step(self) -> None:
        """Run one statement, up to the next one or into a lock."""
        self._go.put(None)
        self.settle()

    def settle(self) -> None:
        """Wait until the statement is done, or waits for a lock."""
        for _ in range(int(_LOST_SECONDS / _LOOK_SECONDS)):
            try:
                self.at = self._arrived.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                (found,) = self._watch.execute("SELECT cardinality(pg_blocking_pids($1))", [self._pid]).fetchall()
                if found[0]:
                    self.at = BLOCKED
                    return
            else:
                return
        raise AssertionError("a statement neither ends nor waits for a lock")

    def turn(self) -> None:
        """Wait for the turn; the session calls this before a statement."""
        if self.gated:
            self._arrived.put(READY)
            self._go.get()


class SteppedSession:
    """A session that waits for its turn before each statement.

    `begin` belongs to the statement after it.
    """

    def __init__(self, inner: PostgresqlSession, side: Side) -> None:
        self._inner = inner
        self._side = side
        self._begun = False
        self._ends = False
        self.migration_lock, self.script, self.close = inner.migration_lock, inner.script, inner.close

    def begin(self) -> None:
        self._inner.begin()
        self._begun = True

    def fetch(self, name: str, rows: Rows | None = None, /, **scalars: Any) -> list[Row]:
        if name in self._side.passes_over:
            return []
        self._ends = (
            name == "bump_changes"
        )  # the last statement of every transaction that has it: one turn with the commit
        answer = cast(list[Row], self._turn(lambda: self._inner.fetch(name, rows, **scalars)))
        # A claim compares what it read: in serial orders the reading belongs to its transaction.
        self._side.in_transaction |= name in _READ_FOR_A_CLAIM
        return answer

    def fetch_together(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Give each block a turn of its own."""
        return [self.fetch(call.block, call.rows, **call.scalars) for call in calls]

    def by_hand(self, text: str, values: Sequence[object]) -> None:
        """Write what an operator writes."""

        def write() -> None:
            self._inner._send_begin()
            self._inner._connection.execute(cast(Any, text), values)

        self._turn(write)

    def commit(self) -> None:
        if self._ends:
            self._inner.commit()
        else:
            self._turn(self._inner.commit)
        self._begun = self._side.in_transaction = False

    def rollback(self) -> None:
        self._inner.rollback()
        self._begun = self._side.in_transaction = False

    def _turn(self, statement: Callable[[], Any]) -> Any:
        self._side.turn()
        self._side.in_transaction = self._begun
        try:
            return statement()
        except psycopg.Error as error:
            self._side.deadlocks += self._side.classify(error) is Fault.DEADLOCK
            raise


@dataclass
class Play:
    """One way in which the statements of both sides followed each other."""

    steps: list[int] = field(default_factory=list)  # which side's statement it was
    could: list[bool] = field(default_factory=list)  # whether the second side could have had that turn too
    results: tuple[object, object] = (None, None)
    deadlocks: int = 0

    def __str__(self) -> str:
        return "".join("AB"[step] for step in self.steps)


Rule = Callable[[Sequence[Side], list[int]], Sequence[int]]


def every_statement(sides: Sequence[Side], steps: list[int]) -> Sequence[int]:
    """Either side may be next."""
    return (0, 1)


def whole_transactions(sides: Sequence[Side], steps: list[int]) -> Sequence[int]:
    """Let each transaction that has begun go on to its end."""
    return (steps[-1],) if steps and sides[steps[-1]].in_transaction else (0, 1)


def second_in_one_go(sides: Sequence[Side], steps: list[int]) -> Sequence[int]:
    """Once the second side has begun it goes on to its end."""
    return (1,) if 1 in steps and sides[1].at == READY else (0, 1)


def play(sides: Sequence[Side], works: Sequence[Callable[[], object]], wish: Sequence[int], rule: Rule) -> Play:
    """Run both works. `wish` says whose turn it is; after its end the first side goes on first."""
    done = Play()
    for side, work in zip(sides, works, strict=True):
        side.begin(work)
    while any(side.at != ENDED for side in sides):
        ready = [at for at in (0, 1) if sides[at].at == READY]
        options = [at for at in rule(sides, done.steps) if at in ready] or ready
        if not options:  # both wait: a deadlock, which the server ends
            sides[0].settle()
            sides[1].settle()
            continue
        turn = wish[len(done.steps)] if len(done.steps) < len(wish) else options[0]
        assert turn in options, "the same statements do not follow each other again"
        done.steps.append(turn)
        done.could.append(options == [0, 1])
        sides[turn].step()
        other = sides[1 - turn]
        if other.at == BLOCKED and not sides[turn].in_transaction:
            other.settle()
    done.results = (sides[0].result, sides[1].result)
    done.deadlocks = sides[0].deadlocks + sides[1].deadlocks
    return done


def plays(
    sides: Sequence[Side], works: Sequence[Callable[[], object]], rule: Rule, before: Callable[[], None]
) -> Iterator[Play]:
    """Every way in which the statements of both works can follow each other under the rule."""
    wish: list[int] = []
    while True:
        before()
        done = play(sides, works, wish, rule)
        yield done
        again = [at for at, (step, could) in enumerate(zip(done.steps, done.could, strict=True)) if could and not step]
        if not again:
            return
        wish = [*done.steps[: again[-1]], 1]
