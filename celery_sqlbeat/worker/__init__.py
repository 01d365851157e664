"""The worker's part: starts runs with their leases, extends them, writes outcomes; claims nothing.

Every `celery` process imports this module, by the entry point of our commands: it only waits for a
worker to start, and imports nothing else of the package before.
"""

from typing import Any

from celery import signals


def _on_celeryd_init(instance: Any = None, options: Any = None, **_: Any) -> None:
    try:
        from celery_sqlbeat import environment

        if environment.is_disabled():
            return
        from celery_sqlbeat.celery_bridge import guard
    except Exception as error:  # Celery would log it, and the worker would run without leases
        line = f"celery-sqlbeat cannot be loaded ({error!r}): repair its installation"
        raise SystemExit(f"{line} (SQLBEAT_DISABLE=1 runs this worker as a plain one)") from error
    try:
        from celery_sqlbeat.worker.install import install

        install(instance.app)
    except Exception as error:
        given = options or {}
        line = guard.told(error, "worker")
        guard.refuse_worker(line, instance.app, given.get("loglevel"), given.get("logfile"))


def wait_for_worker() -> None:
    """Install the extension in the worker that this process may become."""
    signals.celeryd_init.connect(_on_celeryd_init, weak=False, dispatch_uid="sqlbeat-celeryd-init")
