"""How a worker gets the extension, and what ends one that cannot have it."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from celery import signals

from celery_sqlbeat import worker
from celery_sqlbeat.celery_bridge import guard
from celery_sqlbeat.worker import install

BROKEN = ("celery_sqlbeat.celery_bridge.guard", "celery_sqlbeat.worker.install")


class Worker:
    """A worker that begins."""

    def __init__(self, app: Any) -> None:
        self.app = app


@pytest.fixture(params=BROKEN)
def broken(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one module of the package be impossible to import."""
    parent, _, name = request.param.rpartition(".")
    monkeypatch.setitem(sys.modules, request.param, None)
    monkeypatch.delattr(sys.modules[parent], name, raising=False)


@pytest.mark.usefixtures("broken")
def test_a_worker_that_cannot_load_its_extension_ends_with_one_line() -> None:
    """Celery's signals log every other exception, and the worker would run without leases."""
    with pytest.raises(SystemExit) as ended:
        worker._on_celeryd_init(SimpleNamespace(app=None))
    line = str(ended.value)
    assert "celery-sqlbeat" in line and "repair" in line and "SQLBEAT_DISABLE=1" in line and "\n" not in line


@pytest.mark.usefixtures("broken")
def test_a_disabled_worker_needs_nothing_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLBEAT_DISABLE", "1")
    worker._on_celeryd_init(SimpleNamespace(app=None))


@pytest.mark.parametrize("error", [RuntimeError("odd"), AttributeError("_process_task")])
def test_no_error_of_a_start_up_handler_is_swallowed(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise error

    app = SimpleNamespace(conf={}, steps={"consumer": set()})
    monkeypatch.setattr(install, "_apps", [app])
    monkeypatch.setattr(guard, "require_worker", fail)
    monkeypatch.setattr(signals.worker_init, "receivers", [])
    signals.worker_init.connect(install._on_worker_init, weak=False)
    with pytest.raises(SystemExit) as ended:
        signals.worker_init.send(sender=Worker(app))
    assert str(error) in str(ended.value) and "SQLBEAT_DISABLE=1" in str(ended.value)
