"""One check of an app: gathers the facts, each in a bounded time, and says what they mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from celery_sqlbeat.beat.django_rows import LeftRows, left_rows
from celery_sqlbeat.beat.rules import rules_of
from celery_sqlbeat.config import Settings
from celery_sqlbeat.diagnosis import apps, broker, clock, code, configuration, database, rows, workers
from celery_sqlbeat.diagnosis.asking import ask_broker, ask_code, ask_workers, within
from celery_sqlbeat.diagnosis.facts import Code, Facts, Ground, Wire
from celery_sqlbeat.diagnosis.finding import LEVELS, Finding
from celery_sqlbeat.diagnosis.reading import read_ground
from celery_sqlbeat.errors import SqlbeatError, StoreError
from celery_sqlbeat.store import Store, open_store

FAMILIES = (
    configuration.findings,
    database.findings,
    clock.findings,
    database.findings,
    broker.findings,
    workers.findings,
    apps.findings,
    rows.findings,
    code.findings,
)
QUESTIONS = 3  # to the workers, one after the other
SLACK = 5.0  # seconds for connections to be made, beside the time that each question has


def diagnose(app: Any, settings: Settings, seconds: float = 2.0, store: Store | None = None) -> list[Finding]:
    """What is wrong with this app, its database, its broker and its workers; the worst first."""
    found: list[Finding] = [*database.of_driver(settings.database_url)]
    own_code = _code(app, settings, found)
    ground = _ground(app, settings, seconds, store, found)
    wire = _wire(app, seconds, ground, own_code, found)
    facts = Facts(settings, ground, wire, own_code)
    for family in FAMILIES:
        found += family(facts)
    return sorted(found, key=lambda finding: LEVELS.index(finding.level))


def of_settings(error: SqlbeatError) -> Finding:
    """Settings that cannot work: nothing else can be checked."""
    return Finding("error", "settings", str(error), "correct the setting; docs/settings.md has them all")


def _code(app: Any, settings: Settings, found: list[Finding]) -> Code | None:
    try:
        return ask_code(app, settings)
    except Exception as error:  # whatever the user's modules raise
        text = " ".join(str(error).split())
        says = f"the modules of the app cannot be imported: {type(error).__name__}: {text}"
        found.append(Finding("error", "app", says, "correct them, or imports and include"))
        return None


def _ground(app: Any, settings: Settings, seconds: float, store: Store | None, found: list[Finding]) -> Ground | None:
    url = settings.database_url
    if url.database == "sqlite" and not url.in_memory and store is None:
        import os

        if not os.path.exists(url.name):  # the only kind of database that a beat makes by itself
            says = f"there is no database at {url}"
            found.append(Finding("error", "database", says, "run celery -A app sqlbeat init, or start a beat"))
            return None
    opened = store
    try:
        opened = opened or open_store(settings)
        ground = read_ground(app, opened, settings, rules_of(app, settings), seconds + SLACK)
        return replace(ground, left_rows=_left_rows(opened, seconds + SLACK))
    except StoreError as error:
        found.append(database.of_error(error, url))
        return None
    finally:
        if store is None and opened is not None:
            opened.close()


def _left_rows(store: Store, seconds: float) -> LeftRows | None:
    try:
        return within(seconds, lambda: left_rows(store))
    except TimeoutError:  # of Django's database; nothing is known of it
        return None


def _wire(app: Any, seconds: float, ground: Ground | None, own_code: Code | None, found: list[Finding]) -> Wire | None:
    try:
        wire = within(seconds + SLACK, lambda: ask_broker(app, seconds))
    except (SqlbeatError, TimeoutError) as error:
        found.append(broker.unreachable(str(error)))
        return None
    tasks = {job.task for job in ground.jobs.seen} if ground is not None else set()
    has_unknown = own_code is None or bool(tasks - own_code.tasks)
    try:
        return within(QUESTIONS * seconds + SLACK, lambda: ask_workers(app, wire, seconds, has_unknown))
    except Exception as error:  # not every transport can ask
        text = " ".join(str(error).split()) or type(error).__name__
        found.append(broker.unanswered(text))
        return wire
