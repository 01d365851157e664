"""Under gevent and eventlet: what native threads log is handed to the thread of the green ones, and written there.

The locks of `logging` are green then. One that a native thread waits for may never be given to it.
"""

import logging
from typing import Any

from celery_sqlbeat.worker import native
from celery_sqlbeat.worker.loops import Loop

_PACKAGE = "celery_sqlbeat"
_LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


class Relay(logging.Handler):
    """Passes records on to where they would have gone, in the thread in which it was made."""

    def __init__(self, loop: Loop) -> None:
        super().__init__()
        self._loop = loop
        self._thread = native.thread_id()

    def createLock(self) -> None:  # noqa: N802 - the name that logging gives it
        """Have no lock: this is what must not be waited for."""
        self.lock: Any = _NoLock()

    def emit(self, record: logging.LogRecord) -> None:
        """Write it here, or have it written."""
        if native.thread_id() == self._thread:
            _onward(record)
        else:
            self._loop.post(lambda: _onward(record))


class _NoLock:
    def __enter__(self) -> None:
        """Nobody waits."""

    def __exit__(self, *_: object) -> None:
        """Nobody waited."""

    def acquire(self) -> None:
        """Nobody waits."""

    def release(self) -> None:
        """Nobody waited."""


def relay_logs(loop: Loop) -> None:
    """Hand on what native threads of this package log; the handlers of others are as they were."""
    logger = logging.getLogger(_PACKAGE)
    for handler in list(logger.handlers):
        if isinstance(handler, Relay):
            logger.removeHandler(handler)
    logger.addHandler(Relay(loop))
    logger.propagate = False
    _remember_levels()


def _remember_levels() -> None:
    """Ask each logger here whether it is enabled: the first question takes a lock of `logging`, a green one, too."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and (name == _PACKAGE or name.startswith(f"{_PACKAGE}.")):
            for level in _LEVELS:
                logger.isEnabledFor(level)


def _onward(record: logging.LogRecord) -> None:
    logging.getLogger().handle(record)
