"""What the tests of one process share, and what each of them has to leave as it found it."""

import logging
import os
import signal
import socket
from typing import Any

import celery.app.builtins  # noqa: F401 - adds Celery's own shared tasks: now, not in the middle of a test
from celery import _state as celery_state

_CELERY: Any = celery_state  # private names, which its stubs leave out
_STOPPING = (signal.SIGTERM, signal.SIGINT)


def hear_stop_signals() -> None:
    """Block and ignore none of them: processes that tests start inherit that.

    A shell ignores SIGINT on behalf of what it starts in the background.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def surroundings() -> dict[str, Any]:
    """Return what would change the outcome of later tests."""
    root = logging.getLogger()
    return {
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "handlers of signals": {number: signal.getsignal(number) for number in _STOPPING},
        "shared tasks": set(_CELERY._on_app_finalizers),  # they come into every app
        "Celery's current app": _CELERY._tls.current_app,
        "environment": {name: value for name, value in os.environb.items() if name != b"PYTEST_CURRENT_TEST"},
        "working directory": os.getcwd(),
        "time-out of sockets": socket.getdefaulttimeout(),  # Celery's beat sets one for its whole process
        "root logger": (root.level, root.disabled, logging.root.manager.disable),
    }
