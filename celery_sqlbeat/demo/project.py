"""Where the example project is, and the surroundings in which the demonstration runs it."""

import os
from collections.abc import Mapping
from pathlib import Path

from celery_sqlbeat.errors import SqlbeatError

APP = "example_project"
LEASE_SECONDS = 6.0  # below the 9 s of the long task, so that only heartbeats keep it alive
_SETTINGS = {
    "SQLBEAT_LOCK_TIMEOUT": f"{LEASE_SECONDS:g}",
    "SQLBEAT_HEARTBEAT_INTERVAL": "1.5",
    "SQLBEAT_HEARTBEAT_FAILURES": "2",
    "SQLBEAT_DISPATCH_TIMEOUT": "3",
    "SQLBEAT_POLL_INTERVAL": "5",
    "SQLBEAT_NOTICE_INTERVAL": "1",
}
_NOT_INHERITED = ("SQLBEAT_", "CELERY_", "EXAMPLE_")  # what steers other apps


def project_root() -> Path:
    """The folder that has the example project: inside an installed wheel, beside the package in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for root in (package / "demo", package.parent):
        if (root / APP / "tasks.py").is_file():
            return root
    raise SqlbeatError("the example project is missing from this installation: install celery-sqlbeat again")


def surroundings(inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of the processes: short leases, and nothing that was meant for another app."""
    environ = {name: value for name, value in inherited.items() if not name.startswith(_NOT_INHERITED)}
    path = [str(project_root()), str(Path(__file__).resolve().parents[2])]
    if "PYTHONPATH" in environ:
        path.append(environ["PYTHONPATH"])
    return {**environ, **_SETTINGS, "PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}


def settings() -> dict[str, object]:
    """The same settings, for whoever looks at the database from outside."""
    return {name.lower(): float(value) for name, value in _SETTINGS.items() if name != "SQLBEAT_HEARTBEAT_FAILURES"}
