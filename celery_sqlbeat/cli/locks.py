"""Run `celery sqlbeat locks`: who holds which lock, and how it is taken away."""

from __future__ import annotations

import click

from celery_sqlbeat.cli import Command, handle_of
from celery_sqlbeat.cli.output import json_option, print_json, print_table, say, utc_option, when_briefly, zone_label
from celery_sqlbeat.config.validation import span


@click.group()
def locks() -> None:
    """Show the named locks, and take one away from its holder."""


@locks.command("list", cls=Command)
@json_option
@utc_option
@click.pass_context
def list_locks(ctx: click.Context, as_json: bool, utc: bool) -> None:
    """List the locks that somebody holds, leaders among them."""
    with handle_of(ctx) as beat:
        held = beat.locks.list()
    if as_json:
        print_json(
            [
                {
                    "key": lock.key,
                    "holder": lock.holder,
                    "fence": lock.fence,
                    "taken_at": lock.taken_at.isoformat(),
                    "lease_ends_at": lock.lease_ends_at.isoformat(),
                }
                for lock in held
            ]
        )
        return
    headers = ["key", "holder", "fence", f"since ({zone_label(utc)})", "lease ends in"]
    rows = [
        [
            lock.key,
            lock.holder,
            str(lock.fence),
            when_briefly(lock.taken_at, utc),
            span((lock.lease_ends_at - lock.now).total_seconds()),
        ]
        for lock in held
    ]
    print_table(headers, rows, "no lock is held")


@locks.command("release", cls=Command)
@click.argument("key")
@click.option("--force", is_flag=True, help="Although somebody holds it, who learns of it at his next heartbeat.")
@click.option("--version", type=int, help="Only if it is still held with this fence.")
@click.pass_context
def release(ctx: click.Context, key: str, force: bool, version: int | None) -> None:
    """Take the lock KEY away from its holder."""
    with handle_of(ctx) as beat:
        freed = beat.locks.free(key, force, version=version)
    if freed is None:
        raise click.ClickException(f"nobody holds the lock {key!r}: see celery -A app sqlbeat locks list")
    say(f"the lock {freed.key} is free; {freed.holder} held it with fence {freed.fence}")
