"""Puts a beat together: opens the store, brings the `beat_schedule` into it, and joins the parts of a tick.

Runs at the first tick, in the process that ticks, and again after every failure, until the database has answered.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import celery_sqlbeat
from celery_sqlbeat.beat.bystanders import Bystanders, LookAt
from celery_sqlbeat.beat.cleaning import Cleaning
from celery_sqlbeat.beat.code import CodePlanner, StockRun, custom_slots, first_runs
from celery_sqlbeat.beat.code_calls import CodeCalls
from celery_sqlbeat.beat.django_rows import tell_left_rows
from celery_sqlbeat.beat.duties import Duties, Duty
from celery_sqlbeat.beat.entries import CodeSchedule, read_entries
from celery_sqlbeat.beat.firing import Firing
from celery_sqlbeat.beat.handing_back import HandingBack
from celery_sqlbeat.beat.importing import Importing
from celery_sqlbeat.beat.lasting import LongRuns
from celery_sqlbeat.beat.publishing import Publisher
from celery_sqlbeat.beat.questions import Questions
from celery_sqlbeat.beat.reaping import Reaping
from celery_sqlbeat.beat.replacing import Replacing
from celery_sqlbeat.beat.rules import rules_of
from celery_sqlbeat.beat.sight import Sight
from celery_sqlbeat.beat.standing import Standing
from celery_sqlbeat.beat.strangers import Watch
from celery_sqlbeat.beat.tending import Tending
from celery_sqlbeat.beat.tick import Tick
from celery_sqlbeat.beat.unknown_tasks import UnknownTasks
from celery_sqlbeat.brokerage import fingerprint
from celery_sqlbeat.config import Settings
from celery_sqlbeat.lifecycle import Backoff
from celery_sqlbeat.machine import THIS_MACHINE, Machine
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.policy import Policy, policy_for
from celery_sqlbeat.results import end_results
from celery_sqlbeat.store import Store

logger = logging.getLogger(__name__)

_LONGEST_PAUSE = 15.0  # seconds between two tries of a worker of release 0.1.0; later ones come back within two


class Parts(NamedTuple):
    """What a scheduler keeps of a beat."""

    tick: Tick
    standing: Standing
    firing: Firing
    handing_back: HandingBack | None
    """Where the shop may go back to stock beat."""
    background: Sequence[Duties]
    """What threads of this beat do, each with a connection of its own."""


def assemble(
    app: Any,
    settings: Settings,
    store: Store,
    publisher: Publisher,
    schedule: Mapping[Any, Any],
    stock: Mapping[str, StockRun],
    look_at: LookAt | None = None,
    machine: Machine = THIS_MACHINE,
    stock_file: str | None = None,
    recall: Callable[[Sequence[str]], None] = lambda _: None,
) -> Parts:
    """Everything that a beat needs, once the tables are there and say what the code says.

    `stock_file`: the file of stock beat, where it is to be kept true. `look_at`: who consumes queues; None asks nobody.
    """
    _find_tables(settings, store, publisher)
    code = _read_code(app, settings, schedule)
    standing = _standing(app, settings, store, code, machine)
    server_now = standing.join(settings.beat_alive)
    rules = rules_of(app, settings)
    questions = Questions(machine.clock)
    imported = CodePlanner(code, rules, first_runs(code, server_now, stock, questions), stock, machine.ids)
    differs = any(_differs(policy_for(name, settings.policies)) for name in code.entries)
    calls = CodeCalls(code, questions)
    importing = Importing(
        store.for_code(), code, imported, calls, settings.namespace, settings.beat_alive, differs, machine.clock
    )
    importing.bring()
    tell_left_rows(store)
    planner = Planner(rules, machine.ids, custom_slots(code, imported.since, questions))
    patience = settings.heartbeat_interval + _LONGEST_PAUSE
    sight = Sight(patience, settings.dispatch_timeout, 2 * settings.poll_interval, machine.clock)
    beat_store = store.for_beat(standing.name)
    bystanders = None
    if look_at is not None:
        republishes = settings.republish == "auto"
        bystanders = Bystanders(standing, look_at, settings.worker_memory, republishes, machine.clock)
    firing = Firing(
        beat_store,
        planner,
        publisher,
        standing,
        calls,
        settings.batch_size,
        settings.dispatch_timeout,
        machine.clock,
        machine.random,
        Backoff(settings.retry_base, settings.retry_factor, settings.retry_max),
        UnknownTasks(
            beat_store,
            standing,
            publisher.queue_of,
            settings.unknown_task_timeout,
            bystanders,
            machine.clock,
            machine.random,
        ),
        bystanders,
    )
    reaping = Reaping(
        beat_store,
        publisher,
        standing,
        calls,
        sight,
        settings.max_lost_leases,
        settings.dispatch_timeout,
        settings.batch_size,
        machine.clock,
        bystanders,
        Replacing(beat_store, planner, code.owner, settings.batch_size, recall),
    )
    tick = Tick(
        beat_store,
        publisher,
        sight,
        firing,
        reaping,
        calls,
        settings.poll_interval,
        settings.notice_interval,
        machine.clock,
        machine.random,
        lambda: hasten(),
    )
    back = HandingBack(stock_file, schedule, code.owner, store.for_code()) if stock_file else None
    tending = Tending(beat_store, planner, settings.lock_timeout, code.owner)
    lasting = LongRuns(store.for_admin(), rules, machine.clock)
    keep_code = _keep_code(importing, settings.poll_interval, machine)
    watch = Watch(store, machine.clock)
    housekeeping = _housekeeping(
        standing, tending, keep_code, lasting, watch, tick.stir, settings.poll_interval, machine
    )

    def hasten() -> None:
        """Somebody changed something: jobs of the code, perhaps, or another beat has come or gone."""
        keep_code.hasten()
        housekeeping.wake()

    housekeeping()  # once before the first fire, so that rows written by hand are in order
    cleaning = Cleaning(store.for_admin(), settings.history_days, machine.clock)
    cleanup = Duties("cleanup", [Duty("the clean-up", cleaning.clean, machine.clock, machine.random)], machine.clock)
    results = _results(app, store, settings.poll_interval, machine)
    return Parts(tick, standing, firing, back, (housekeeping, cleanup, results))


def _results(app: Any, store: Store, poll: float, machine: Machine) -> Duties:
    """A thread of its own: Celery may wait long for a result backend that is away."""

    def end() -> float:
        # Workers do so at once; what is left here is of dead ones, and of those that cannot.
        return 0.0 if end_results(app, store.results()) else 5 * poll

    duty = Duty("ending the results of earlier attempts", end, machine.clock, machine.random)
    return Duties("results", [duty], machine.clock)


def _housekeeping(
    standing: Standing,
    tending: Tending,
    keep_code: Duty,
    lasting: LongRuns,
    watch: Watch,
    stir: Callable[[], None],
    poll: float,
    machine: Machine,
) -> Duties:
    """What is done once in a while, of which nothing waits for anything else. An idle beat asks the database little."""

    def say_alive() -> float:
        standing.say_alive()
        return poll

    def tend() -> float:
        if tending.tend():
            stir()
        return poll

    def free_strays() -> float:
        tending.free_strays()
        return 2 * poll

    def look_for_others() -> float:
        watch.look()
        return poll

    def tell_long_runs() -> float:
        lasting.tell()
        return 2 * poll

    duties = {
        "saying that this beat is alive": say_alive,
        "bringing rows in order": tend,
        "freeing locks without a run": free_strays,
        "telling of long runs": tell_long_runs,
        "looking for other schedulers": look_for_others,
    }
    made = [Duty(name, work, machine.clock, machine.random) for name, work in duties.items()]
    return Duties("housekeeping", [*made, keep_code], machine.clock)


def _keep_code(importing: Importing, poll: float, machine: Machine) -> Duty:
    def keep() -> float:
        importing.keep()
        return 2 * poll

    return Duty("bringing the code into the table", keep, machine.clock, machine.random)


def _find_tables(settings: Settings, store: Store, publisher: Publisher) -> None:
    if settings.creates_tables:
        store.migrate(logger.info)
    if remark := store.check_schema().remark:
        logger.info("%s", remark)
    store_id, _ = store.nodes().identity()
    publisher.identify(store_id, settings.namespace)


def _read_code(app: Any, settings: Settings, schedule: Mapping[Any, Any]) -> CodeSchedule:
    code = read_entries(app, schedule, settings.release, settings.policies)
    for problem in code.problems:
        logger.error("entry %s of the beat_schedule is left out: %s", problem.name, problem.reason)
    return code


def _standing(app: Any, settings: Settings, store: Store, code: CodeSchedule, machine: Machine) -> Standing:
    return Standing(
        store.nodes(),
        celery_sqlbeat.__version__,
        code.release,
        settings.worker_memory,
        settings.worker_alive,
        code.owner,
        fingerprint(app.connection_for_write()),
        machine,
    )


def _differs(policy: Policy) -> bool:
    """Whether a job of this policy behaves otherwise than under stock beat."""
    return policy.overlap != "allow" or policy.max_retries != 0
