"""Tracing tools see each message of a beat once, as they do under stock beat.

Tried with the packages themselves.

They are large and need not fit what is installed here, so each test installs its own, beside the
environment.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.process.conftest import MakeShop
from tests.support.beats import Shop, assert_clean, wait_for

pytestmark = pytest.mark.slow

_JOBS = 3
_ENTRIES = {f"job-{number}": {"task": "shop.add", "schedule": 1, "args": [number]} for number in range(_JOBS - 1)} | {
    "of-others": {"task": "elsewhere.task", "schedule": 1}  # a task that this app does not have goes by send_task
}

_KEEP = """\

def keep(name):
    with open("seen", "a") as file:
        file.write(name + "\\n")

"""

_DATADOG = """\
from ddtrace import patch
from ddtrace.trace import TraceFilter, tracer


class Kept(TraceFilter):
    def process_trace(self, trace):
        for span in trace:
            keep(span.name)


tracer.configure(trace_processors=[Kept()])
patch(celery=True, kombu=True)
"""

_NEW_RELIC = """\
import kombu.messaging
import newrelic.hooks.messagebroker_kombu as hooks

as_it_is = hooks.wrap_Producer_publish  # beat is in no transaction of its own, so that it only hands on


def publish(*args):
    keep("publish")
    return as_it_is(*args)


hooks.wrap_Producer_publish = publish
hooks.instrument_kombu_messaging(kombu.messaging)
"""

_OPENTELEMETRY = """\
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult


class Kept(SpanExporter):
    def export(self, spans):
        for span in spans:
            keep(span.name)
        return SpanExportResult.SUCCESS


trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(Kept()))
CeleryInstrumentor().instrument()
"""


@pytest.fixture
def installed(tmp_path: Path) -> "Installed":
    return Installed(tmp_path / "tools")


class Installed:
    """Packages in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, *packages: str) -> str:
        """Return the PYTHONPATH of a process that is to have them."""
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(self._folder), *packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{', '.join(packages)} cannot be installed here: {done.stderr[-300:]}")
        root = Path(__file__).resolve().parents[2]
        return os.pathsep.join((str(root), str(self._folder.parent), str(self._folder)))


def seen_of(shop: Shop) -> Counter[str]:
    """How often the tool saw what."""
    return Counter((shop.folder / "seen").read_text().split("\n")[:-1])


def told_of(seen: Counter[str]) -> int:
    """Of how many messages the tool has told by what it tells last."""
    return max(seen["publish"], seen["celery.beat.apply_entry"], sum(map(seen.__getitem__, of_opentelemetry(seen))))


def of_opentelemetry(seen: Counter[str]) -> list[str]:
    """Return the names of its spans of messages that are sent."""
    return [name for name in seen if name.startswith("apply_async/")]


def fired(shop: Shop, extra: str, path: str) -> Counter[str]:
    """Fire for a while beside the tool; returns how many messages of each task went out."""
    shop.write(_ENTRIES, extra=_KEEP + extra)
    beat = shop.start(PYTHONPATH=f"{path}{os.pathsep}{shop.folder}", DD_TRACE_AGENT_URL="http://127.0.0.1:1")
    wait_for(lambda: len(shop.dispatched()) >= 3 * _JOBS, 60, shop.logs)
    # A tool tells of a message after it was sent, and a signal to stop would cut that short.
    seen = shop.folder / "seen"
    wait_for(lambda: seen.exists() and told_of(seen_of(shop)) >= len(shop.dispatched()), 60, shop.logs)
    beat.stop()
    assert_clean(beat)
    sent = shop.place.take()
    assert {message.headers["sqlbeat"]["run"] for message in sent} == {message.headers["id"] for message in sent}
    assert len({message.headers["id"] for message in sent}) == len(sent) >= 3 * _JOBS
    return Counter(message.headers["task"] for message in sent)


def test_datadog_sees_each_tick_each_entry_and_each_message_once(make_shop: MakeShop, installed: Installed) -> None:
    shop = make_shop("sqlite", "redis")
    sent = fired(shop, _DATADOG, installed("ddtrace"))
    seen = seen_of(shop)
    assert seen["celery.beat.apply_entry"] == seen["kombu.publish"] == sent.total(), seen
    assert seen["celery.apply"] == sent["shop.add"], seen  # it passes over tasks that the app does not have
    assert seen["celery.beat.tick"] >= 3


def test_new_relic_sees_each_message_once(make_shop: MakeShop, installed: Installed) -> None:
    shop = make_shop("sqlite", "rabbitmq")
    sent = fired(shop, _NEW_RELIC, installed("newrelic"))
    assert seen_of(shop)["publish"] == sent.total()


def test_opentelemetry_sees_each_message_once(make_shop: MakeShop, installed: Installed) -> None:
    shop = make_shop("sqlite", "rabbitmq")
    packages = "opentelemetry-instrumentation-celery", "opentelemetry-sdk"
    sent = fired(shop, _OPENTELEMETRY, installed(*packages))
    seen = seen_of(shop)
    assert sum(map(seen.__getitem__, of_opentelemetry(seen))) == sent.total(), seen
