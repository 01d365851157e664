"""`celery sqlbeat explain NAME`: why a job ran or did not run, and when it fires next."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_sqlbeat.cli.command import Command, handle_of
from celery_sqlbeat.cli.output import json_option, print_json, print_table, when, when_twice, zone_label

if TYPE_CHECKING:
    from celery_sqlbeat.handle.explaining import Explanation


@click.command(cls=Command)
@click.argument("name")
@click.option("--slots", type=click.IntRange(1, 1000), default=10, show_default=True, help="Of so many last slots.")
@json_option
@click.pass_context
def explain(ctx: click.Context, name: str, slots: int, as_json: bool) -> None:
    """Tell why a job ran or did not run at each of its last slots, who holds it, and when it fires next."""
    with handle_of(ctx) as beat:
        found = beat.explain(name, slots)
    if as_json:
        print_json(found.as_json())
    else:
        _print(found)


def _print(found: Explanation) -> None:
    click.echo(f"{found.job.name} at {when_twice(found.job.read_at)}")
    for sentence in found.now:
        click.echo(f"- {sentence}")
    click.echo("\nlast slots")
    headers = list(dict.fromkeys([f"slot ({zone_label()})", "slot (UTC)"]))  # one, where that is the same
    rows = [
        [*(when(each.scheduled_for, utc) for utc in (False, True)[-len(headers) :]), each.says] for each in found.slots
    ]
    print_table([*headers, "what became of it"], rows, "none so far")
    click.echo("\nnext fires")
    for remark in found.remarks:
        click.echo(f"- {remark}")
    rows = [
        [f"{each.local:%a %Y-%m-%d %H:%M:%S %Z}", when(each.at, utc=True), each.note or ""] for each in found.next_fires
    ]
    print_table(["time of the job", "UTC", ""], rows, "none that can be foretold")
