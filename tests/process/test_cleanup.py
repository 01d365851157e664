"""A long history is deleted beside due jobs, by all beats together."""

import pytest

from tests.process.conftest import MakeShop
from tests.support.beats import Shop, assert_clean, wait_for
from tests.support.views import AdminView

pytestmark = pytest.mark.slow

MONTH = 30 * 86400.0
COLUMNS = (
    "RunId, Namespace, JobId, JobName, Kind, ScheduledFor, Attempt, State, PriorState, Fence, FinishedAt, CreatedAt"
)
OLD = {
    "postgresql": f"""
        INSERT INTO JobRuns ({COLUMNS})
        SELECT gen_random_uuid(), 'default', j.Id, 'old', 'schedule', s.At, 1, 'dispatched', 'claimed', 1, s.At, s.At
        FROM Jobs AS j, (
            SELECT clock_timestamp() - interval '9 days' + i * interval '1 second' AS At
            FROM generate_series(1, 100000) AS i
        ) AS s
    """,
    "sqlite": f"""
        INSERT INTO JobRuns ({COLUMNS})
        WITH RECURSIVE i (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM i WHERE n < 5000),
        s (n, At) AS (SELECT n, strftime('%Y-%m-%d %H:%M:%S', 'now', '-9 days', n || ' seconds') || '.000000' FROM i)
        SELECT printf('%032d', s.n), 'default', j.Id, 'old', 'schedule', s.At, 1, 'dispatched', 'claimed', 1, s.At, s.At
        FROM Jobs AS j, s
    """,
}


def fires(shop: Shop) -> int:
    """How many slots were sent."""
    return sum(run.job_name == "each second" for run in shop.dispatched())


@pytest.mark.parametrize("database", sorted(OLD))
def test_a_long_history_is_deleted_beside_due_jobs(make_shop: MakeShop, database: str) -> None:
    shop = make_shop(database, "redis")
    shop.add("each second", at=shop.now())
    shop.statement(OLD[database])
    shop.write()
    beats = [shop.start(), shop.start()]
    wait_for(lambda: AdminView(shop.store).counts(MONTH).states.get("dispatched", 0) < 1000, 120, shop.logs)
    before = fires(shop)
    wait_for(lambda: fires(shop) >= before + 3, 30, shop.logs)
    for beat in beats:
        beat.stop()
    assert_clean(*beats)
