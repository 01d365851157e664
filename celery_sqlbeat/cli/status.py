"""Run `celery sqlbeat check`, `status` and `health`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import click

import celery_sqlbeat
from celery_sqlbeat.cli import Command, app_of, handle_of, settings_of
from celery_sqlbeat.cli.output import json_option, print_facts, print_json, print_table, say, when_twice
from celery_sqlbeat.config.validation import span

if TYPE_CHECKING:
    from celery_sqlbeat.api import Handle
    from celery_sqlbeat.api.status import Status
    from celery_sqlbeat.celery_bridge.guard import Summary
    from celery_sqlbeat.checks import Finding


LEVELS = ("error", "warning", "note")


@click.command(cls=Command)
@click.option("--timeout", type=click.FloatRange(0.1, 60), default=2.0, show_default=True, help="Seconds per question.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@click.option("--symbols", is_flag=True, help="Print each symbol that no library promises, too.")
@json_option
@click.pass_context
def check(ctx: click.Context, timeout: float, strict: bool, symbols: bool, as_json: bool) -> None:
    """Check configuration, database, broker, workers and jobs; exit with 1 if something is wrong.

    A warning may be meant so, and a note is only worth knowing: for these the exit code is 0.
    """
    from celery_sqlbeat.celery_bridge.guard import summarize

    libraries = summarize()
    if symbols and not as_json:
        _print_symbols(libraries)
    if libraries.missing:  # much of what checks the rest could not even be imported
        _refuse(ctx, libraries, as_json)
    findings = [*_library_findings(libraries), *_diagnose(ctx, timeout)]
    wrong = [finding for finding in findings if finding.level == "error" or (strict and finding.level == "warning")]
    if as_json:
        print_json(
            {"ok": not wrong, "findings": [finding._asdict() for finding in findings], "libraries": libraries.as_json()}
        )
    else:
        say(libraries.text)
        _print_findings(findings)
    ctx.exit(1 if wrong else 0)


def _print_symbols(libraries: Summary) -> None:
    rows = [
        (
            row["symbol"],
            row["part"],
            row["feature"] or "required",
            row["since"] or "-",
            row["difference"] or row["state"],
        )
        for row in libraries.as_json()["symbols"]
    ]
    print_table(("symbol", "part", "for", "since", "state"), rows, "no symbol is needed")


def _refuse(ctx: click.Context, libraries: Summary, as_json: bool) -> NoReturn:
    """Print the refusal with which a worker or a beat would end here."""
    says, _, remedy = libraries.refusal(celery_sqlbeat.__version__).rpartition(": ")
    if as_json:
        finding = {"level": "error", "name": "libraries", "says": says, "remedy": remedy}
        print_json({"ok": False, "findings": [finding], "libraries": libraries.as_json()})
    else:
        for line in (libraries.text, f"error: {says} [libraries]", f"  {remedy}", "1 error"):
            say(line)
    ctx.exit(1)


def _library_findings(libraries: Summary) -> list[Finding]:
    """Return a warning for each fast path that the installed libraries turn off."""
    from celery_sqlbeat.checks import Finding

    return [
        Finding(
            "warning", "libraries", f"{feature} is off: {reason}", "upgrade celery-sqlbeat when there is a newer one"
        )
        for feature, reason in libraries.features_off.items()
    ]


def _diagnose(ctx: click.Context, timeout: float) -> list[Finding]:
    from celery_sqlbeat.checks import diagnose, settings_finding
    from celery_sqlbeat.errors import SettingError

    app = app_of(ctx)
    try:
        settings = settings_of(ctx)
    except SettingError as error:
        return [settings_finding(error)]
    return diagnose(app, settings, timeout)


def _print_findings(findings: list[Finding]) -> None:
    for finding in findings:
        say(f"{finding.level}: {finding.says} [{finding.name}]")
        say(f"  {finding.remedy}")
    click.echo(", ".join(_count(findings, level) for level in LEVELS) if findings else "nothing is wrong")


def _count(findings: list[Finding], level: str) -> str:
    count = sum(finding.level == level for finding in findings)
    return f"{count} {level}{'' if count == 1 else 's'}"


@click.command(cls=Command)
@json_option
@click.pass_context
def status(ctx: click.Context, as_json: bool) -> None:
    """Show the jobs, the beats and the workers."""
    with handle_of(ctx) as beat:
        state = beat.status()
    if as_json:
        print_json(state.as_json())
    else:
        _print(state)


def _schema(state: Status) -> str:
    if state.schema_version <= state.schema_known:
        return f"version {state.schema_version}"
    return f"version {state.schema_version}, newer than version {state.schema_known}, which this release knows"


def _print(state: Status) -> None:
    jobs = state.jobs
    print_facts(
        [
            ("database", state.database),
            ("namespace", state.namespace),
            ("store", state.store + (f", epoch {state.epoch}" if state.epoch else "")),
            ("schema", _schema(state)),
            ("clock", f"{when_twice(state.now)}, this machine {state.skew_seconds:+.3f} s"),
            ("jobs", ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in jobs.items())),
            ("waiting", f"{jobs['due']} due" + (f", for up to {span(state.lag_seconds)}" if jobs["due"] else "")),
            (
                "last hour",
                ", ".join(f"{count} {state}" for state, count in state.last_hour.items()) or "nothing was due",
            ),
            ("dead letters", str(state.dead_letters)),
        ]
    )
    click.echo()
    rows = [
        [process.id, process.state, span(process.silent_seconds), process.version, ", ".join(process.queues)]
        for process in state.processes
        if process.state != "stopped"
    ]
    print_table(["beat or worker", "state", "last seen", "version", "queues"], rows, "no beat and no worker is there")


@click.command(cls=Command)
@click.option("--here", is_flag=True, help="Only this machine: is its beat or worker alive?")
@click.option(
    "--liveness",
    is_flag=True,
    help="Only whether a beat or worker of this machine hangs. An absent database is no reason to restart it.",
)
@click.option(
    "--max-lag", type=click.FloatRange(min=0), default=60.0, show_default=True, help="Seconds that a job may be due."
)
@json_option
@click.pass_context
def health(ctx: click.Context, here: bool, liveness: bool, max_lag: float, as_json: bool) -> None:
    """Exit with 0 if the database answers, a beat lives, and no job is late or refused; else 1."""
    from celery_sqlbeat.errors import TransientError

    with handle_of(ctx) as beat:
        try:
            problems = _problems(beat, here, liveness, max_lag)
            warnings = [] if here or liveness else _warnings(beat)
        except TransientError as error:
            problems, warnings = ([] if liveness else [str(error)]), []
    if as_json:
        print_json({"healthy": not problems, "problems": problems, "warnings": warnings})
    else:
        for warning in warnings:
            say(f"Warning: {warning}", err=True)
        for problem in problems:
            say(f"Error: {problem}", err=True)
        if not problems:
            click.echo("healthy")
    ctx.exit(1 if problems else 0)


def _problems(beat: Handle, here: bool, liveness: bool, max_lag: float) -> list[str]:
    import socket

    from celery_sqlbeat.api.status import (
        HOUR,
        hung_processes,
        machine_problems,
        namespace_problems,
        processes,
        read_lag,
        refused_jobs,
    )

    store = beat.ready()
    nodes = store.nodes(HOUR)
    seen = processes(nodes, beat.settings)
    if liveness:
        return hung_processes(seen, socket.gethostname(), _is_running)
    if here:
        return machine_problems(seen, socket.gethostname())
    return namespace_problems(seen, read_lag(store), max_lag, list(refused_jobs(store, nodes).values()))


def _warnings(beat: Handle) -> list[str]:
    """Return what may be intended, and is no reason for a probe to restart a process."""
    from celery_sqlbeat.model.run_times import LEAST_SECONDS, MOST_LONG_RUNS, long_runs

    running = beat.ready().running(LEAST_SECONDS, MOST_LONG_RUNS)
    return [str(run) for run in long_runs(running, beat.rules)]


def _is_running(pid: int) -> bool:
    """Tell whether a process of this id runs on this machine."""
    import os

    if os.name == "nt":  # where this signal would be Ctrl-C
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it runs, under another user
        return True
    return True
