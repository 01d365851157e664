"""`celery sqlbeat ...`: the group of our commands. Every celery process loads it: nothing but click at import."""

import click

from celery_sqlbeat.cli.init import init


@click.group()
def sqlbeat(**_preload_options: object) -> None:  # options that the app adds to every command (`user_options`)
    """The schedule in a SQL table."""


sqlbeat.add_command(init)

__all__ = ["sqlbeat"]
