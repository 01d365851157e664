"""`celery sqlbeat check`: what is wrong with the installation, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_sqlbeat.cli.command import Command, app_of, settings_of
from celery_sqlbeat.cli.output import json_option, print_json

if TYPE_CHECKING:
    from celery_sqlbeat.diagnosis import Finding

LEVELS = ("error", "warning", "note")


@click.command(cls=Command)
@click.option("--timeout", type=click.FloatRange(0.1, 60), default=2.0, show_default=True, help="Seconds per question.")
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings, too.")
@json_option
@click.pass_context
def check(ctx: click.Context, timeout: float, strict: bool, as_json: bool) -> None:
    """Look at configuration, database, broker, workers and jobs; exit with 1 if something is wrong.

    A warning may be meant so, and a note is only worth knowing: for these the exit code is 0.
    """
    found = _diagnose(ctx, timeout)
    wrong = [each for each in found if each.level == "error" or (strict and each.level == "warning")]
    if as_json:
        print_json({"ok": not wrong, "findings": [each._asdict() for each in found]})
    else:
        _print(found)
    ctx.exit(1 if wrong else 0)


def _diagnose(ctx: click.Context, timeout: float) -> list[Finding]:
    from celery_sqlbeat.diagnosis import diagnose
    from celery_sqlbeat.diagnosis.diagnosis import of_settings
    from celery_sqlbeat.errors import SettingError

    app = app_of(ctx)
    try:
        settings = settings_of(ctx)
    except SettingError as error:
        return [of_settings(error)]
    return diagnose(app, settings, timeout)


def _print(found: list[Finding]) -> None:
    for each in found:
        click.echo(f"{each.level}: {each.says} [{each.name}]")
        click.echo(f"  {each.remedy}")
    click.echo(", ".join(_count(found, level) for level in LEVELS) if found else "nothing is wrong")


def _count(found: list[Finding], level: str) -> str:
    count = sum(each.level == level for each in found)
    return f"{count} {level}{'' if count == 1 else 's'}"
