"""The judge reads a store without SQL by its verbs, and notices rows that they do not tell."""

from pathlib import Path

import redis

from celery_sqlbeat.environment import Ids
from celery_sqlbeat.model import NewRun
from celery_sqlbeat.store.records import JobQuery
from tests.chaos import rows
from tests.support.beats import Shop
from tests.support.brokers import Place
from tests.support.private_servers import private_redis


def test_a_row_that_no_page_tells_of_is_found_on_redis(tmp_path: Path) -> None:
    with private_redis() as server:
        shop = Shop(tmp_path, server.url, Place("redis", server.url))
        shop.store.migrate()
        shop.add("job")
        (job,) = shop.store.jobs(JobQuery()).values()
        (run_id,) = shop.store.enqueue([NewRun(Ids().random_id(), job.job_id)])
        assert [(run.run, run.job, run.kind) for run in rows.read(shop)] == [(run_id, "job", "manual")]
        assert not rows.hidden(shop)
        assert redis.Redis.from_url(server.url).zrem("sqlbeat:{default}:by:runs", run_id) == 1
        (text,) = rows.hidden(shop)
        assert text.startswith(f"run {run_id} is told as None, and kept as Run(")
        shop.close()
