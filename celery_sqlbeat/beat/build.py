"""Put a beat together: find the tables, bring the `beat_schedule` into them, join the parts.

This runs at the first tick, in the process that ticks, and after a failure again with the next.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import celery_sqlbeat
from celery_sqlbeat import events
from celery_sqlbeat.beat.deadlines import Deadlines, ReclaimGuard
from celery_sqlbeat.beat.dispatch import Dispatcher, Tick
from celery_sqlbeat.beat.duties import Duties, Duty, Pauses, PollGrid
from celery_sqlbeat.beat.full_pools import FullPools
from celery_sqlbeat.beat.housekeeping import CleanUp, Housekeeping, LongRunReport
from celery_sqlbeat.beat.membership import BeatMembership
from celery_sqlbeat.beat.other_schedulers import SEEN_SECONDS, OtherSchedulers, tell_left_rows
from celery_sqlbeat.beat.reclaim import Reclaimer, Replacer
from celery_sqlbeat.beat.recording import Answer, PublishRecorder
from celery_sqlbeat.beat.republish_evidence import AskConsumers, RepublishEvidence
from celery_sqlbeat.beat.withheld import UnknownTasks
from celery_sqlbeat.beat_schedule.custom_schedule import ScheduleQuestions
from celery_sqlbeat.beat_schedule.entries import CodeSchedule, read_entries
from celery_sqlbeat.beat_schedule.plan import SchedulePlanner, StockRun, custom_slots, first_runs
from celery_sqlbeat.beat_schedule.shelve_file import ShelveWriter
from celery_sqlbeat.beat_schedule.sync import EntryCalls, ScheduleSync
from celery_sqlbeat.celery_bridge.app import fingerprint, rules_of
from celery_sqlbeat.celery_bridge.tasks import end_results
from celery_sqlbeat.config.policy import Policy, policy_for
from celery_sqlbeat.config.settings import Settings
from celery_sqlbeat.environment import THIS_MACHINE, Machine
from celery_sqlbeat.errors import DatabaseUnavailable
from celery_sqlbeat.model.claim_orders import order_of
from celery_sqlbeat.model.lifecycle import Backoff
from celery_sqlbeat.planning import Planner
from celery_sqlbeat.publish.publisher import Publisher
from celery_sqlbeat.store import Store

_WORKER_PAUSE = 15.0  # seconds between two retries of a worker of release 0.1.0; later ones take two
RECLAIM_PAUSES = Pauses(first=1.0, longest=5.0, longest_transient=5.0)


@dataclass(frozen=True, kw_only=True)
class BeatParts:
    """What a scheduler keeps of a beat."""

    tick: Tick
    membership: BeatMembership
    dispatcher: Dispatcher
    shelve_writer: ShelveWriter | None
    """Where the shop may go back to stock beat."""
    background: Sequence[Duties]
    """What threads of this beat do, each with a connection of its own."""


def build_beat(
    app: Any,
    settings: Settings,
    store: Store,
    publisher: Publisher,
    schedule: Mapping[Any, Any],
    stock: Mapping[str, StockRun],
    ask_consumers: AskConsumers | None = None,
    machine: Machine = THIS_MACHINE,
    stock_file: str | None = None,
    recall: Callable[[Sequence[str]], None] = lambda _: None,
    in_thread: Callable[[Callable[[], None]], object] | None = None,
    begin_record: Callable[[Answer], Answer] | None = None,
) -> BeatParts:
    """Put a beat together, once the tables are there and say what the code says.

    `stock_file`: stock beat's file, where it is kept true. `ask_consumers`: asks who consumes
    queues; None asks nobody. `in_thread`: begins a thread; None takes those of the machine.
    `begin_record`: begins to record a batch while the next one is sent.
    """
    clock, rnd, poll = machine.clock, machine.random, settings.poll_interval
    if settings.payload_key is not None:
        settings.payload_key.load()
    _find_tables(settings, store, publisher)
    code = _read_code(app, settings, schedule)
    membership = BeatMembership(
        store,
        celery_sqlbeat.__version__,
        code.release,
        settings.worker_memory,
        settings.worker_alive,
        code.owner,
        fingerprint(app.connection_for_write()),
        machine,
    )
    server_now = membership.join(settings.beat_alive)
    rules = rules_of(app, settings)
    questions = ScheduleQuestions(clock)
    schedule_planner = SchedulePlanner(code, rules, first_runs(code, server_now, stock, questions), stock, machine.ids)
    calls = EntryCalls(code, questions)
    sync = ScheduleSync(
        store,
        code,
        schedule_planner,
        calls,
        settings.namespace,
        settings.beat_alive,
        differs=any(_differs(policy_for(name, settings.policies)) for name in code.entries),
        clock=clock,
    )
    sync.bring()
    tell_left_rows(store)
    planner = Planner(rules, machine.ids, custom_slots(code, schedule_planner.since, questions))
    reclaim_guard = ReclaimGuard(
        patience_seconds=settings.heartbeat_interval + _WORKER_PAUSE,
        claim_seconds=settings.dispatch_timeout,
        longest_absence=2 * poll,
        clock=clock,
    )
    evidence = None
    if ask_consumers is not None:
        evidence = RepublishEvidence(
            membership,
            ask_consumers,
            settings.worker_memory,
            republishes=settings.republish == "auto",
            clock=clock,
            start=in_thread,
            alive_seconds=settings.worker_alive,
        )
    recorder = PublishRecorder(
        store,
        membership,
        clock,
        rnd,
        Backoff(settings.retry_base, settings.retry_factor, settings.retry_max),
        evidence,
        begin_record,
    )
    queue_of, unknown_seconds = publisher.queue_of, settings.unknown_task_timeout
    unknown_tasks = UnknownTasks(store, membership, queue_of, unknown_seconds, evidence, clock, rnd)
    dispatcher = Dispatcher(
        store,
        planner,
        publisher,
        membership,
        calls,
        recorder,
        settings.batch_size,
        settings.dispatch_timeout,
        clock,
        FullPools(store, rnd, unknown_tasks.sift).sift,
        order_of(settings.claim_order),
    )
    reclaimer = Reclaimer(
        store,
        publisher,
        membership,
        calls,
        rules,
        reclaim_guard,
        settings.max_lost_leases,
        settings.dispatch_timeout,
        settings.batch_size,
        clock,
        evidence,
        Replacer(store, planner, code.owner, recall),
    )
    deadlines = Deadlines(store, calls, reclaim_guard, poll, settings.notice_interval, clock, rnd)
    grid = PollGrid(poll, clock)
    housekeeping = _housekeeping(
        membership,
        Housekeeping(store, planner, settings.lock_timeout, code.owner),
        sync,
        LongRunReport(store, rules, clock),
        OtherSchedulers(store, clock),
        deadlines,
        poll,
        grid,
        machine,
    )
    deadlines.on_change = housekeeping.hasten
    housekeeping()  # once before the first fire, so that rows written by hand are in order
    cleaning = CleanUp(store, settings.history_days, clock)
    reclaim = Duty("reclaiming ended leases", reclaimer.reclaim, clock, rnd, RECLAIM_PAUSES, DatabaseUnavailable)
    return BeatParts(
        tick=Tick(deadlines, publisher, dispatcher, recorder, reclaim, reclaim_guard, questions),
        membership=membership,
        dispatcher=dispatcher,
        shelve_writer=ShelveWriter(stock_file, schedule, code.owner, store) if stock_file else None,
        background=[
            housekeeping,
            Duties("cleanup", [Duty("purging history", cleaning.clean, clock, rnd)], clock),
            _results(app, store, grid, machine),
        ],
    )


# An idle beat asks the database little. Of the polls after its start none has more than one of
# these duties, nor one of them beside a pass of the clean-up, which comes at the polls 1, 7, 15, 31
# and so on. Each duty is also done at the start.
_CODE, _RESULTS, _OTHERS = (2, 2), (5, 4), (3, 8)  # the first poll, and the polls from one to the next


def _results(app: Any, store: Store, grid: PollGrid, machine: Machine) -> Duties:
    """Build a thread for results: Celery may wait long for an unavailable result backend."""

    def end() -> float:
        # Workers do so at once; what is left is of dead ones, and of those that cannot.
        return 0.0 if end_results(app, store) else grid.until(*_RESULTS)

    duty = Duty("ending the results of earlier attempts", end, machine.clock, machine.random)
    return Duties("results", [duty], machine.clock)


def _housekeeping(
    membership: BeatMembership,
    chores: Housekeeping,
    sync: ScheduleSync,
    long_runs: LongRunReport,
    other_schedulers: OtherSchedulers,
    deadlines: Deadlines,
    poll: float,
    grid: PollGrid,
    machine: Machine,
) -> Duties:
    """Join the duties of the housekeeping thread.

    What concerns runs is done only while the last reading of the deadlines has seen one.
    """

    def say_alive() -> float:
        membership.say_alive()
        return poll

    def release_orphans() -> float:
        if deadlines.has_runs:
            chores.release_orphan_locks()
        return poll

    def find_others() -> float:
        other_schedulers.find()
        return max(poll, min(grid.until(*_OTHERS), SEEN_SECONDS - poll))

    def tell_long_runs() -> float:
        if deadlines.has_runs:
            long_runs.tell()
        return 2 * poll

    def repair_rows() -> float:
        if chores.repair_rows():
            deadlines.stir()
        return poll

    def keep_code() -> float:
        sync.keep()
        return grid.until(*_CODE)

    def duties(works: Mapping[str, Callable[[], float]]) -> list[Duty]:
        return [Duty(name, work, machine.clock, machine.random) for name, work in works.items()]

    regular = {
        "saying that this beat is alive": say_alive,
        "releasing orphan locks": release_orphans,
        "telling of long runs": tell_long_runs,
        "looking for other schedulers": find_others,
    }
    # A change may concern the code's jobs, or be another beat that came or went, or the end of the
    # run for which the deletion of its job has waited.
    hastened = {"repairing rows": repair_rows, "bringing the code into the table": keep_code}
    return Duties("housekeeping", duties(regular), machine.clock, duties(hastened))


def _find_tables(settings: Settings, store: Store, publisher: Publisher) -> None:
    if settings.creates_tables:
        store.migrate(lambda text: events.noted(topic="schema", text=text))
    schema = store.check_schema()
    if schema.remark:
        events.noted(topic="schema", text=schema.remark)
    publisher.identify(schema.store_id, settings.namespace)


def _read_code(app: Any, settings: Settings, schedule: Mapping[Any, Any]) -> CodeSchedule:
    code = read_entries(app, schedule, settings.release, settings.policies)
    for problem in code.problems:
        events.entry_rejected(entry=problem.name, reason=problem.reason)
    return code


def _differs(policy: Policy) -> bool:
    """Return whether a job of this policy behaves otherwise than under stock beat."""
    return policy.overlap != "allow" or policy.max_retries != 0
