"""Our place among the bootsteps of Celery's consumer: told of each connection, of its end, and of the event loop."""

from typing import Any

from celery import bootsteps
from kombu.common import ignore_errors

from celery_sqlbeat.roster import STATS
from celery_sqlbeat.worker.extension import Extension
from celery_sqlbeat.worker.secrecy import hide_from_all


class ConsumerStep(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery has no types
    """After the step that consumes, so that its stop comes before the consumer and the pool are stopped."""

    name = "sqlbeat"
    label = "sqlbeat"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, c: Any) -> None:
        """The consumer has a connection."""
        extension = _extension(c)
        if extension is None:
            return
        extension.connected(c)
        if not hasattr(c, "_sqlbeat_sees_queues"):
            c._sqlbeat_sees_queues = True
            hide_from_all(c)
            c.task_consumer.on_decode_error = c.on_decode_error  # it was made with the one of before
            for name in ("add_task_queue", "cancel_task_queue"):
                setattr(c, name, _telling(getattr(c, name), extension))

    def register_with_event_loop(self, c: Any, hub: Any) -> None:
        """The event loop begins anew with each connection, and has forgotten who listened."""
        if (extension := _extension(c)) is not None:
            extension.join(hub)

    def stop(self, c: Any) -> None:
        """The connection is lost, or the worker ends."""
        extension = _extension(c)
        if extension is None:
            return
        is_closing = c.blueprint.state != bootsteps.RUN
        if is_closing and c.task_consumer is not None:
            # Or what goes back to the broker would come here again.
            ignore_errors(c, c.task_consumer.cancel)  # type: ignore[no-untyped-call]
        extension.disconnected(is_closing)

    def info(self, c: Any) -> dict[str, Any]:
        """Seen in `inspect stats`: this worker has the extension."""
        extension = _extension(c)
        return {STATS: extension.info()} if extension is not None else {}


def _extension(c: Any) -> Extension | None:
    return getattr(c.controller, "sqlbeat", None)


def _telling(original: Any, extension: Extension) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return original(*args, **kwargs)
        finally:
            extension.queues_changed()

    return call
