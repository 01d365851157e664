"""What is particular to MySQL and MariaDB: sessions, packets, and the role of grants.sql."""

import secrets
from datetime import datetime, timedelta, timezone
from typing import Any, cast

import pytest

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.errors import StoreError
from celery_sqlbeat.model import DeleteJob
from celery_sqlbeat.model.lifecycle import Ending
from celery_sqlbeat.store import dialect_for
from celery_sqlbeat.store.sql.engine import Database
from celery_sqlbeat.store.sql.session import sql_folder
from celery_sqlbeat.store.sql.store import SqlStore
from tests.contract.conftest import Place
from tests.support.views import WorkerView
from tests.support.world import World

pytestmark = pytest.mark.parametrize("place", ["mysql"], indirect=True)


def test_the_clock_is_utc_whatever_the_servers_time_zone(place: Place, world: World) -> None:
    session = cast(Any, dialect_for(database_url(place.address), 5.0)).connect()
    session.script("SET time_zone = '+09:00'")
    ((now,),) = session.fetch("read_clock")
    assert abs(now - datetime.now(timezone.utc)) < timedelta(minutes=1)
    session.close()


def test_an_outcome_longer_than_a_packet_keeps_no_other_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        world.add()
    runs = [world.start(claim) for claim in world.claim().claims if world.publish(claim) or True]
    connect = world.store.database.dialect.connect

    def small() -> Any:
        session = cast(Any, connect())
        session._longest = 30_000
        return session

    monkeypatch.setattr(world.store.database._pool, "_connect", small)
    world.store.database.close()
    with pytest.raises(StoreError, match="longer than max_allowed_packet"):
        WorkerView(world.store, "w").finish(
            [(run, Ending("retry", "failed", 1.0, 1, 0, "e", "t" * 15_000)) for run in runs if run]
        )
    for run in runs:
        assert run is not None
        assert world.finish(run, Ending("retry", "failed", 1.0, 1, 0, "e", "t" * 15_000))


def test_the_role_of_the_script_can_do_all_that_a_beat_and_a_worker_do(place: Place, world: World) -> None:
    who = f"sqlbeat_{secrets.token_hex(4)}"
    administrator = cast(Any, dialect_for(database_url(place.address), 5.0)).connect()
    grants = (sql_folder("mysql") / "grants.sql").read_text(encoding="utf-8")
    administrator.script(grants)
    administrator.script(
        f"CREATE USER {who} IDENTIFIED BY 'throw-away'; GRANT sqlbeat_runner TO {who}; "
        f"SET DEFAULT ROLE sqlbeat_runner FOR {who}"
    )
    try:
        address = place.address.replace("root@", f"{who}:throw-away@")
        dialect = cast(Any, dialect_for(database_url(address), 5.0))
        dialect.blocks = place.dialect().blocks
        administrator.script(f"GRANT SELECT ON TestClock TO {who}")
        theirs = World(SqlStore(Database(dialect), world.namespace), place.sql, place.set_clock)
        name = theirs.add()
        assert theirs.finish(theirs.running())
        assert theirs.states(name) == ["success"]
        assert theirs.admin.write_jobs([DeleteJob(name)])
        assert theirs.store.check_schema().remark is None
        with pytest.raises(StoreError, match="denied"):
            theirs.store.database.write(lambda session: cast(Any, session).script("DROP TABLE Jobs"))
        theirs.store.close()
    finally:
        administrator.script(f"DROP USER {who}")
        administrator.close()
