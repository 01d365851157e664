"""What workers tell of their tasks, and when it is certain that nobody has one."""

import json

import pytest

from celery_sqlbeat.model.nodes import mark_in, mark_of, names_in, nobody_has, tell_tasks, with_mark


def test_what_was_told_is_read_again() -> None:
    text = tell_tasks({"app.b", "app.a"})
    details = with_mark('{"other": [1]}', text)
    assert json.loads(details) == {"other": [1], "tasks": mark_of(text)}
    assert names_in(text, mark_in(details) or "") == frozenset({"app.a", "app.b"})


@pytest.mark.parametrize("details", [None, "", "{}", "nonsense", "[]", '{"tasks": 7}'])
def test_who_tells_nothing_that_can_be_read_tells_nothing(details: str | None) -> None:
    assert mark_in(details) is None
    assert with_mark(details, tell_tasks([])) == json.dumps({"tasks": mark_of("[]")})


def test_names_that_are_not_those_of_the_mark_are_not_believed() -> None:
    """The worker is about to write the others."""
    assert names_in(tell_tasks(["app.a"]), mark_of(tell_tasks(["app.b"]))) is None
    assert names_in(None, mark_of("[]")) is None
    for text in ("nonsense", '{"a": 1}'):
        assert names_in(text, mark_of(text)) is None


def test_it_takes_somebody_and_the_certainty_about_each_to_say_that_nobody_has_a_task() -> None:
    knows, other = frozenset({"app.a"}), frozenset({"app.b"})
    assert nobody_has("app.a", [other, other])
    assert not nobody_has("app.a", [])
    assert not nobody_has("app.a", [other, knows])
    assert not nobody_has("app.a", [other, None])  # one of an older release has not told
