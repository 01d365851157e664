"""The kinds of events are told apart by name, and fit into a log."""

import inspect
import logging
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from celery_sqlbeat import events
from celery_sqlbeat.events import KINDS, kinds

ALL = list(KINDS.values())
OF_A_RECORD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "event"}


def test_there_are_few_enough_to_know_them() -> None:
    assert len(ALL) <= 45
    assert len(Path(kinds.__file__).read_text(encoding="utf-8").splitlines()) <= 300


def test_names_and_sentences_are_told_apart() -> None:
    assert len({kind.sentence for kind in ALL}) == len(ALL)
    assert [name for name, kind in KINDS.items() if name != kind.name] == []


def test_a_kind_fits_into_a_log() -> None:
    """No field has the name of an attribute that each record has; the sentence is no format."""
    for kind in ALL:
        assert not set(kind.fields) & OF_A_RECORD, kind
        assert "%" not in kind.sentence and ":" not in kind.sentence and not kind.sentence.endswith("."), kind
        assert len(kind.sentence) <= 90, kind


def test_a_kind_is_public_and_its_fields_have_types() -> None:
    for kind in ALL:
        assert kind.name in events.__all__ and getattr(events, kind.name) is getattr(kinds, kind.name), kind
        assert set(get_type_hints(kind.declaration)) == {*kind.fields, "return"}
        assert all(re.fullmatch("[a-z_]+", field) for field in kind.fields), kind
        assert all(
            each.kind is each.KEYWORD_ONLY for each in inspect.signature(kind.declaration).parameters.values()
        ), kind
        assert not kind.has_traceback or "error" in kind.fields, kind


def test_a_claim_id_is_no_field() -> None:
    """It is a secret: who has it may write for the run."""
    for kind in ALL:
        assert not {"claim", "claim_id", "start_id"} & set(kind.fields), kind


def test_a_field_that_is_not_declared_is_refused() -> None:
    wrong: Any = {"tries": 1, "try": 2}
    with events.recorded(), pytest.raises(TypeError):
        events.database_available(**wrong)
