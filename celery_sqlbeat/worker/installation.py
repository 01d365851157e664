"""Installs the extension in the workers of an app. Opens nothing: the database is asked once a worker consumes."""

import os
import weakref
from importlib import import_module
from typing import Any

from celery import signals

from celery_sqlbeat.config import read_settings
from celery_sqlbeat.errors import SettingError
from celery_sqlbeat.worker.extension import Extension
from celery_sqlbeat.worker.steps import ConsumerStep

_apps: "weakref.WeakSet[Any]" = weakref.WeakSet()
_extensions: "weakref.WeakSet[Extension]" = weakref.WeakSet()


def install(app: Any) -> None:
    """Let each worker of this app, started from now on, keep the leases of what it runs. May be called twice.

    With SQLBEAT_DISABLE=1 in its environment a worker is a plain one.
    """
    if app in _apps or os.environ.get("SQLBEAT_DISABLE", "0") not in ("", "0"):
        return
    _apps.add(app)
    app.steps["consumer"].add(ConsumerStep)
    signals.worker_init.connect(_on_worker_init, weak=False, dispatch_uid="sqlbeat-worker-init")
    signals.worker_shutdown.connect(_on_worker_shutdown, weak=False, dispatch_uid="sqlbeat-worker-shutdown")
    signals.task_revoked.connect(_on_task_revoked, weak=False, dispatch_uid="sqlbeat-task-revoked")


def _on_worker_init(sender: Any, **_: Any) -> None:
    if sender.app not in _apps or hasattr(sender, "sqlbeat"):
        return
    try:
        settings = read_settings(sender.app.conf, os.environ)
    except SettingError as error:
        raise SystemExit(f"celery-sqlbeat: {error}") from error  # the only error that Celery's signals let through
    import_module("celery_sqlbeat.worker.recalling")  # it registers a remote control, which only workers have
    sender.sqlbeat = Extension(sender, settings)
    _extensions.add(sender.sqlbeat)


def _on_worker_shutdown(sender: Any, **_: Any) -> None:
    extension = getattr(sender, "sqlbeat", None)
    if extension is not None:
        extension.close()


def _on_task_revoked(request: Any = None, terminated: bool = False, expired: bool = False, **_: Any) -> None:
    if not terminated and request is not None:
        for extension in list(_extensions):
            extension.bury(request, bool(expired))
