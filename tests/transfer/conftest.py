"""Shops that move from another scheduler: their app, their settings, and an empty table."""

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_sqlbeat.api import Handle
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.transfer.jsonl import SourceJobs
from celery_sqlbeat.transfer.plan import ImportStep, import_source

Open = Callable[..., Handle]


@pytest.fixture
def open_shop(tmp_path: Path) -> Iterator[Open]:
    """Make a handle on an app with this configuration, and with a namespace of its own.

    `url`: of its database; a file of its own unless it is given.
    """
    opened: list[Handle] = []

    def make(url: str | None = None, **conf: Any) -> Handle:
        app = Celery("shop", broker="memory://", set_as_current=False)
        app.conf.update(timezone="UTC", **conf)
        own = {
            "sqlbeat_database_url": url or f"sqlite:///{tmp_path}/{len(opened)}.db",
            "sqlbeat_namespace": f"test-{secrets.token_hex(6)}",
        }
        handle = Handle(app, read_settings(own, {}))
        handle.store.migrate()
        opened.append(handle)
        return handle

    yield make
    for handle in opened:
        handle.close()


def move(beat: Handle, shop: SourceJobs, dry_run: bool = False) -> dict[str, ImportStep]:
    """Return what became of each job, by name."""
    steps = list(import_source(beat.store, beat.settings, beat.rules, shop, dry_run))
    assert len({step.name for step in steps}) == len(steps), "each job is told of once"
    return {step.name: step for step in steps}
