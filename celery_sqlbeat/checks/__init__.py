"""Check an app: gather facts, each in a bounded time, and derive findings from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from celery_sqlbeat.beat.other_schedulers import LeftRows, left_rows
from celery_sqlbeat.celery_bridge.app import rules_of
from celery_sqlbeat.checks import installation, jobs, workers
from celery_sqlbeat.checks.facts import LEVELS, BrokerFacts, CodeFacts, DatabaseFacts, Facts, Finding
from celery_sqlbeat.checks.gather import gather_broker, gather_code, gather_workers, read_database, within
from celery_sqlbeat.config.settings import Settings, named_functions
from celery_sqlbeat.errors import KEY_REMEDY, PayloadKeyError, SettingError, SqlbeatError, StoreError
from celery_sqlbeat.store import Store, open_store

__all__ = ["Finding", "diagnose"]

FAMILIES = (
    installation.configuration_findings,
    installation.database_findings,
    installation.clock_findings,
    installation.broker_findings,
    workers.findings,
    jobs.app_findings,
    jobs.row_findings,
    jobs.code_findings,
)
QUESTIONS = 3  # to the workers, one after the other
SLACK = 5.0  # seconds for connections, beside the time of each question


def diagnose(app: Any, settings: Settings, seconds: float = 2.0, store: Store | None = None) -> list[Finding]:
    """Return what is wrong with this app, its database, broker and workers; the worst first."""
    findings: list[Finding] = [*installation.driver_findings(settings.database_url)]
    findings += [settings_finding(error) for error in _missing_functions(settings)]
    code = _read_code(app, settings, findings)
    try:
        if settings.payload_key is not None:
            settings.payload_key.load()
    except PayloadKeyError as error:
        findings.append(Finding("error", "payload-key", str(error), KEY_REMEDY))
        settings = replace(settings, payload_key=None)
    database = _read_database(app, settings, seconds, store, findings)
    broker = _ask_broker(app, seconds, database, code, findings)
    facts = Facts(settings, database, broker, code)
    for family in FAMILIES:
        findings += family(facts)
    return sorted(findings, key=lambda finding: LEVELS.index(finding.level))


def _missing_functions(settings: Settings) -> Iterator[SettingError]:
    for kind, name, place in named_functions(settings):
        try:
            kind.require(name, place)
        except SettingError as error:
            yield error


def settings_finding(error: SqlbeatError) -> Finding:
    """Report settings that cannot work, so that nothing else can be checked."""
    return Finding("error", "settings", str(error), "correct the setting; docs/settings.md has them all")


def _read_code(app: Any, settings: Settings, findings: list[Finding]) -> CodeFacts | None:
    try:
        return gather_code(app, settings)
    except Exception as error:  # whatever the user's modules raise
        text = " ".join(str(error).split())
        says = f"the modules of the app cannot be imported: {type(error).__name__}: {text}"
        findings.append(Finding("error", "app", says, "correct them, or imports and include"))
        return None


def _read_database(
    app: Any, settings: Settings, seconds: float, store: Store | None, findings: list[Finding]
) -> DatabaseFacts | None:
    url = settings.database_url
    if url.database == "sqlite" and not url.in_memory and store is None:
        import os

        if not os.path.exists(url.name):  # the only kind of database that a beat makes by itself
            says = f"there is no database at {url}"
            findings.append(Finding("error", "database", says, "run celery -A app sqlbeat init, or start a beat"))
            return None
    opened = store
    try:
        opened = opened or open_store(settings)
        database = read_database(app, opened, settings, rules_of(app, settings), seconds + SLACK)
        return replace(database, left_rows=_left_rows(opened, seconds + SLACK))
    except StoreError as error:
        findings.append(installation.error_finding(error, url))
        return None
    finally:
        if store is None and opened is not None:
            opened.close()


def _left_rows(store: Store, seconds: float) -> LeftRows | None:
    try:
        return within(seconds, lambda: left_rows(store))
    except TimeoutError:  # of Django's database; nothing is known of it
        return None


def _ask_broker(
    app: Any, seconds: float, database: DatabaseFacts | None, code: CodeFacts | None, findings: list[Finding]
) -> BrokerFacts | None:
    try:
        broker = within(seconds + SLACK, lambda: gather_broker(app, seconds))
    except (SqlbeatError, TimeoutError) as error:
        findings.append(installation.broker_unreachable(str(error)))
        return None
    tasks = {job.task for job in database.jobs.enabled} if database is not None else set()
    has_unknown = code is None or bool(tasks - code.tasks)
    try:
        return within(QUESTIONS * seconds + SLACK, lambda: gather_workers(app, broker, seconds, has_unknown))
    except Exception as error:  # not every transport can ask
        text = " ".join(str(error).split()) or type(error).__name__
        findings.append(installation.workers_unanswered(text))
        return broker
