"""What an entry of a `beat_schedule` says of its last run counts as under stock beat.

A task id of its own does not.
"""

import pytest

from tests.process.conftest import MakeShop
from tests.support.beats import assert_clean, wait_for

pytestmark = pytest.mark.slow

_ENTRIES = """\
from datetime import datetime, timedelta, timezone

two_hours_ago = datetime.now(timezone.utc) - timedelta(hours=2)
app.conf.beat_schedule = {
    "overdue": {"task": "shop.add", "schedule": 3600, "last_run_at": two_hours_ago, "options": {"task_id": "mine"}},
    "new": {"task": "shop.add", "schedule": 3600},
}
"""


@pytest.mark.parametrize(("database", "broker"), [("sqlite", "redis"), ("postgresql", "rabbitmq")])
def test_an_entry_that_says_it_is_overdue_fires_at_once_and_only_once(
    make_shop: MakeShop, database: str, broker: str
) -> None:
    shop = make_shop(database, broker)
    shop.write({}, extra=_ENTRIES)
    first = shop.start()
    wait_for(shop.dispatched, 30, shop.logs)
    first.stop()
    assert first.log.count("the task_id in the options of overdue is replaced") == 1, first.log
    second = shop.start()
    second.says("brought its beat_schedule")
    shop.add("marker", at=shop.now())  # once this has fired, what was due before it has as well
    wait_for(lambda: len(shop.dispatched()) >= 2, 30, shop.logs)
    second.stop()
    assert_clean(first, second)
    assert "task_id" not in second.log
    sent = [message.headers for message in shop.place.take()]
    assert [each["periodic_task_name"] for each in sent if each["periodic_task_name"] != "marker"] == ["overdue"]
    assert "mine" not in {each["id"] for each in sent}
