"""Any text in place of a policy is read or refused, and globs match like file names."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_sqlbeat.config.policy import fields_from_text, policies_from_setting, policy_for
from celery_sqlbeat.errors import FieldError


@given(st.one_of(st.text(), st.recursive(st.none() | st.floats() | st.text(), st.lists).map(json.dumps)))
def test_no_text_in_a_row_does_more_than_be_refused(text: str) -> None:
    with pytest.raises(FieldError):
        fields_from_text(text)


@given(glob=st.text(min_size=1), name=st.text())
def test_any_text_is_a_glob_that_matches_or_not(glob: str, name: str) -> None:
    policies = policies_from_setting({glob: {"jitter": 1}})
    assert policy_for(name, policies).jitter in (0.0, 1.0)
    assert policy_for(glob, policies).jitter == 1.0
