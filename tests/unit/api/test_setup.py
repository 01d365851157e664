"""`celery_sqlbeat.setup(app)`: opens nothing, and says what is wrong when it is first used."""

from pathlib import Path
from typing import Any

import pytest
from celery import Celery

import celery_sqlbeat
from celery_sqlbeat.errors import SchemaError, SettingError


def shop(**conf: Any) -> Celery:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(conf)
    return app


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SQLBEAT_DATABASE_URL", raising=False)


def test_setup_opens_no_connection_and_reads_no_setting(tmp_path: Path) -> None:
    beat = celery_sqlbeat.setup(shop(sqlbeat_database_url="postgresql://127.0.0.1:9/nowhere"))
    assert beat.jobs and beat.runs and beat.dead
    celery_sqlbeat.setup(shop(sqlbeat_batch_size=0))
    app = shop()
    beat = celery_sqlbeat.setup(app)
    app.conf.sqlbeat_database_url = f"sqlite:///{tmp_path / 'late.db'}"
    assert beat.settings.database_url.name == str(tmp_path / "late.db")
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_setting_is_named_at_the_first_use() -> None:
    beat = celery_sqlbeat.setup(shop(sqlbeat_batch_size=0))
    with pytest.raises(SettingError, match="sqlbeat_batch_size = 0"):
        beat.jobs.list()


def test_missing_tables_say_what_to_run_and_make_no_file(tmp_path: Path) -> None:
    beat = celery_sqlbeat.setup(shop(sqlbeat_database_url=f"sqlite:///{tmp_path / 'none.db'}"))
    for ask in (beat.jobs.list, beat.status, beat.dead.list, beat.runs.list, lambda: beat.explain("a")):
        with pytest.raises(SchemaError, match="sqlbeat init"):
            ask()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "none.db").touch()
    with pytest.raises(SchemaError, match="sqlbeat init"):
        beat.jobs.list()
    beat.close()


def test_a_handle_that_was_closed_opens_again(tmp_path: Path) -> None:
    beat = celery_sqlbeat.setup(shop(sqlbeat_database_url=f"sqlite:///{tmp_path / 'jobs.db'}"))
    beat.store.migrate()
    beat.jobs.put("a", task="shop.add", schedule=5)
    beat.close()
    assert [job.name for job in beat.jobs.list()] == ["a"]
    beat.close()


def test_workers_of_the_app_keep_leases() -> None:
    app = shop()
    celery_sqlbeat.setup(app)
    celery_sqlbeat.setup(app)
    assert [step.name for step in app.steps["consumer"]].count("sqlbeat") == 1


def test_what_users_catch_and_call_is_public() -> None:
    assert {"setup", "current_run", "SqlbeatError", "VersionConflict", "LeaseLost"} <= set(celery_sqlbeat.__all__)
    assert issubclass(celery_sqlbeat.VersionConflict, celery_sqlbeat.SqlbeatError)
