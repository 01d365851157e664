"""Whatever a name holds: it is shown on one line, printed, and could be read back."""

import ast

from hypothesis import given
from hypothesis import strategies as st

from celery_sqlbeat.events import quoted, shown

ANY = st.text(st.characters() | st.sampled_from('\\"= \n\r\x1b\u2028\u202e\x85\x9bnxu0'))  # surrogates, too


@given(ANY)
def test_whatever_is_shown_is_one_printed_line(text: str) -> None:
    assert shown(text).isprintable() and quoted(text).isprintable()
    assert len(shown(text).splitlines()) <= 1


@given(ANY)
def test_a_quoted_value_means_one_text_only(text: str) -> None:
    value = quoted(text)
    assert (ast.literal_eval(value) if value[0] in "\"'" else value) == text
