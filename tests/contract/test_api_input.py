"""Any input of `put` becomes a job that reads back, or an error that names the field."""

import json
from datetime import timezone
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tests.support.hypothesis_profile  # noqa: F401  # loads it
from celery_sqlbeat.api import Handle, Job
from celery_sqlbeat.config.policy import KINDS
from celery_sqlbeat.config.settings import read_settings
from celery_sqlbeat.errors import FieldError

FIELDS = ["task", "schedule", "args", "kwargs", "options", "enabled", "start", *KINDS]
SENSIBLE = ["every 5s", "cron * * * * *", "once 2027-01-31T09:00:00Z", "skip", "allow", "fixed_rate", "Europe/Berlin"]
plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20))
odd = st.one_of(
    plain,
    st.sampled_from(SENSIBLE),
    st.binary(max_size=5),
    st.datetimes(),
    st.datetimes(timezones=st.just(timezone.utc)),
    st.timedeltas(),
    st.just(object()),
    st.recursive(
        plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
)


def put(handle: Handle, name: Any, definition: dict[str, Any]) -> Job | FieldError:
    try:
        return handle.jobs.put(name, **definition)
    except FieldError as refusal:
        return refusal


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.just("job") | odd, fields=st.dictionaries(st.sampled_from(FIELDS), odd, max_size=4))
def test_a_definition_is_kept_as_it_is_or_refused_by_its_field(
    handle: Handle, name: Any, fields: dict[str, Any]
) -> None:
    definition: dict[str, Any] = {"task": "shop.add", "schedule": 60, **fields}
    job = put(handle, name, definition)
    if isinstance(job, FieldError):
        assert job.field and job.remedy and len(str(job)) < 700
        return
    json.dumps(job.as_json(), allow_nan=False)
    assert handle.jobs.put(name, **definition).version == job.version, "the same again changed something"
    assert handle.explain(job.name).job.version == job.version


@pytest.fixture(scope="module")
def handle(tmp_path_factory: pytest.TempPathFactory) -> Handle:
    folder: Path = tmp_path_factory.mktemp("input")
    app = Celery("shop", broker="memory://", set_as_current=False)
    made = Handle(app, read_settings({"sqlbeat_database_url": f"sqlite:///{folder / 'jobs.db'}"}, {}))
    made.store.migrate()
    return made
