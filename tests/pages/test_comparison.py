"""What README.md says of other schedulers, held against the versions that are installed here."""

import ast
import importlib.util
from pathlib import Path

import pytest
from celery import Celery
from celery.beat import Scheduler


def methods_of(module: str, scheduler: str) -> set[str]:
    """Return the methods that a scheduler class has of its own, read from its source."""
    parent = importlib.util.find_spec(module.partition(".")[0])
    assert parent is not None and parent.origin is not None
    source = (Path(parent.origin).parent / f"{module.partition('.')[2]}.py").read_text()
    (found,) = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == scheduler]
    return {node.name for node in found.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.filterwarnings("ignore")
def test_stock_beat_is_done_with_a_slot_whose_publish_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: object, **kwargs: object) -> None:
        raise OSError("the broker is away")

    app = Celery("shop", broker="memory://", set_as_current=False)
    scheduler = Scheduler(app, schedule={}, lazy=True)
    scheduler.add(name="often", task="shop.often", schedule=0.001)
    monkeypatch.setattr(Scheduler, "apply_async", fails)
    while not scheduler.schedule["often"].total_run_count:
        scheduler.tick()
    assert scheduler.schedule["often"].total_run_count == 1


def test_django_celery_beat_fires_and_publishes_as_stock_beat_does_and_has_no_lock() -> None:
    own = methods_of("django_celery_beat.schedulers", "DatabaseScheduler")
    assert "sync" in own
    assert not own & {"tick", "apply_entry", "apply_async"}
    assert not [name for name in own if name.startswith(("lock", "acquire"))]


def test_redbeat_waits_for_its_lock_for_25_minutes() -> None:
    from redbeat.schedulers import RedBeatScheduler

    assert RedBeatScheduler.lock_timeout == 25 * 60
