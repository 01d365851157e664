"""Whether there is a database for a worker, and what is said where there is none."""

import os

from celery_sqlbeat.url import DatabaseUrl


def is_there(url: DatabaseUrl) -> bool:
    """Whether the database may be asked: a file that is not there yet must not be made by a worker."""
    return url.database != "sqlite" or url.in_memory or os.path.exists(url.name or "")


def not_there(url: DatabaseUrl) -> str:
    """What a worker says that was given the address of a file which is not there."""
    return f"there is no {url} yet; start a beat, or run `celery sqlbeat init`"


def not_given(url: DatabaseUrl) -> str:
    """What a worker says that was given no address, and finds nothing under the default one."""
    return (
        f"this worker was given no sqlbeat_database_url, and the default, {url}, has no tables of celery-sqlbeat: "
        "it keeps no leases, and of the scheduled tasks it runs only what beats fire and forget; give it the address "
        "that the beats have, by the setting sqlbeat_database_url or by SQLBEAT_DATABASE_URL in its environment"
    )
