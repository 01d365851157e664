"""Nothing but the subscriber of events writes to a log."""

import re

from celery_sqlbeat import events
from tests.support.package_source import sources

CALL = re.compile(r"\blogg(?:er|ing)\.(?:debug|info|warning|error|exception|critical|log)\(")
NAMED = re.compile(r"\bevents\.([a-z_]+)\(")


def others() -> dict[str, str]:
    """Return the modules outside of the room of the events."""
    return {path: text for path, text in sources().items() if not path.startswith("events/")}


def test_no_module_writes_a_line_of_its_own() -> None:
    assert [path for path, text in others().items() if CALL.search(text)] == []


def test_every_event_is_emitted_somewhere() -> None:
    emitted = {name for text in others().values() for name in NAMED.findall(text)}
    assert set(events.KINDS) - emitted == set()
