"""`celery sqlbeat ...`: the group of our commands. Every celery process loads it: nothing but click at import."""

import click

from celery_sqlbeat.cli.command import Group
from celery_sqlbeat.entry import wait_for_worker


@click.group(
    cls=Group,
    late={
        "init": "init:init",
        "check": "check:check",
        "status": "status:status",
        "health": "health:health",
        "explain": "explain:explain",
        "jobs": "jobs:jobs",
        "runs": "runs:runs",
        "dead": "dead:dead",
        "demo": "demo:demo",
    },
)
def sqlbeat(**_preload_options: object) -> None:  # options that the app adds to every command (`user_options`)
    """The schedule in a SQL table."""


wait_for_worker()

__all__ = ["sqlbeat"]
