"""Installs the extension in the workers of an app, as a bootstep of Celery's consumer.

Opens nothing: the database is asked once a worker consumes.
"""

import weakref
from collections.abc import Collection
from typing import Any, NoReturn

from celery import bootsteps, signals

from celery_sqlbeat import environment
from celery_sqlbeat.celery_bridge import guard
from celery_sqlbeat.celery_bridge.consumer import is_closing, prepare, register_command, stop_consuming
from celery_sqlbeat.celery_bridge.inspect_workers import RECALL, STATS
from celery_sqlbeat.celery_bridge.symbols import tell_what_is_off
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.errors import SettingError
from celery_sqlbeat.worker.extension import Extension

_MISTAKES = (AttributeError, ImportError, LookupError, NameError, TypeError)


class ConsumerStep(bootsteps.StartStopStep):
    """Tells the extension of connections; stops before the consumer and the pool do."""

    name = "sqlbeat"
    label = "sqlbeat"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:
        """Take part in a new connection; an error of ours ends the worker."""
        extension = _extension(c)
        if extension is None:
            return
        try:
            tell_what_is_off("worker")
            extension.connected(c)
            prepare(c, extension.queues_changed)
        except c.connection_errors as error:
            if isinstance(error, _MISTAKES):  # some transports count these as lost connections
                guard.end_worker(error)
            raise
        except Exception as error:
            guard.end_worker(error)

    def register_with_event_loop(self, c: Any, hub: Any) -> None:
        """Join the event loop, which starts anew with each connection."""
        if (extension := _extension(c)) is not None:
            extension.join(hub)

    def stop(self, c: Any) -> None:
        """Leave a connection that is lost, or that ends with the worker."""
        if (extension := _extension(c)) is not None:
            closing = is_closing(c)
            if closing:
                stop_consuming(c)
            extension.disconnected(closing)

    def info(self, c: Any) -> dict[str, Any]:  # type: ignore[override]  # Celery's own steps return facts, too
        """Return what `inspect stats` shows: this worker has the extension."""
        extension = _extension(c)
        return {STATS: extension.info()} if extension is not None else {}


def _extension(c: Any) -> Extension | None:
    return getattr(c.controller, "sqlbeat", None)


_apps: "weakref.WeakSet[Any]" = weakref.WeakSet()
_extensions: "weakref.WeakSet[Extension]" = weakref.WeakSet()


def install(app: Any) -> None:
    """Let each worker of this app, started from now on, keep the leases of what it runs.

    May be called twice. With SQLBEAT_DISABLE=1 in its environment a worker is a plain one.
    """
    if app in _apps or environment.is_disabled():
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
        guard.require_worker(sender)
        settings = read_settings(sender.app.conf, environment.variables())
        register_command(recall, RECALL, runs=list)
        sender.sqlbeat = Extension(sender, settings)
    except SettingError as error:
        _refuse(sender, f"celery-sqlbeat: {error}")
    except Exception as error:
        _refuse(sender, guard.told(error))
    _extensions.add(sender.sqlbeat)


def _refuse(worker: Any, line: str) -> NoReturn:
    guard.refuse_worker(line, worker.app, getattr(worker, "loglevel", None), getattr(worker, "logfile", None))


def recall(state: Any, runs: Collection[str] = ()) -> dict[str, int]:
    """Extend the leases of these runs now, which stops those whose lease is lost.

    A remote control of Celery's. The database alone decides: a caller makes a worker ask.
    """
    extension = _extension(state.consumer)
    lease_manager = extension.worker_runtime.lease_manager if extension is not None else None
    return {"ok": lease_manager.recall(runs) if lease_manager is not None else 0}


def _on_worker_shutdown(sender: Any, **_: Any) -> None:
    extension = getattr(sender, "sqlbeat", None)
    if extension is not None:
        extension.close()


def _on_task_revoked(request: Any = None, terminated: bool = False, expired: bool = False, **_: Any) -> None:
    if not terminated and request is not None:
        for extension in list(_extensions):
            extension.end_revoked(request, bool(expired))
