"""What every `celery` process loads of this package: it waits for a worker to start. Nothing else is imported here."""

import logging
from typing import Any

from celery import signals


def _on_celeryd_init(instance: Any = None, **_: Any) -> None:
    try:
        from celery_sqlbeat.worker.installation import install
    except Exception:  # a broken installation of ours must not break a worker that may not even need it
        logging.getLogger(__name__).exception("celery-sqlbeat cannot be loaded; this worker keeps no leases")
        return
    install(instance.app)


def wait_for_worker() -> None:
    """Install the extension in the worker that this process may become."""
    signals.celeryd_init.connect(_on_celeryd_init, weak=False, dispatch_uid="sqlbeat-celeryd-init")
