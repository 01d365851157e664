"""Whatever stands in the settings and the environment is read or refused."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from celery_sqlbeat.config.settings import NAMES, read_settings
from celery_sqlbeat.errors import SettingError

VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.timedeltas(), st.lists(st.text())
)


@given(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3), st.dictionaries(st.sampled_from(NAMES), st.text()))
def test_any_values_are_read_or_refused(conf: dict[str, Any], texts: dict[str, str]) -> None:
    try:
        settings = read_settings(conf, {name.upper(): text for name, text in texts.items()})
    except SettingError:
        return
    assert 0 < settings.statement_timeout < settings.heartbeat_interval
