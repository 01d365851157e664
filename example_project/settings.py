"""Celery's settings. `EXAMPLE_ON` selects `embedded` (default), `postgresql` or `sqlserver`.

No password stands here. `SQLBEAT_DATABASE_URL` and `CELERY_BROKER_URL` in the environment
override these addresses.
"""

import os

from celery_sqlbeat.brokers import folder_url
from example_project.schedule import beat_schedule as beat_schedule

EXAMPLE_ON = os.environ.get("EXAMPLE_ON", "embedded")

if EXAMPLE_ON == "embedded":  # one machine, nothing to install: two things in the folder where the commands are run
    sqlbeat_database_url = "sqlite:///sqlbeat.db"
    broker_url = folder_url("messages")
elif EXAMPLE_ON == "postgresql":  # libpq finds the password in ~/.pgpass
    sqlbeat_database_url = "postgresql://shop@localhost:5432/shop"
    broker_url = "redis://localhost:6379/0"
elif EXAMPLE_ON == "sqlserver":  # the machine's or pod's own identity logs in (Entra ID), so there is no password
    sqlbeat_database_url = "mssql://shop.database.windows.net/shop?identity=managed"
    broker_url = "amqp://localhost:5672//"
else:
    raise ValueError(f"EXAMPLE_ON={EXAMPLE_ON}: must be embedded, postgresql or sqlserver")

sqlbeat_policies = {
    "*": {"cadence": "fixed_rate"},  # ten past stays ten past, however long a run takes
    "fetch-rates": {"max_retries": 2},
}
sqlbeat_retry_base = 1  # seconds

task_acks_late = True  # a message stays with the broker until its task has ended
worker_prefetch_multiplier = 1
task_ignore_result = True
result_expires = None
broker_connection_retry_on_startup = True
