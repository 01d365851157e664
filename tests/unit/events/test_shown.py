"""A name in a row forges no line of a log, and nothing that a terminal would obey."""

import pytest

from celery_sqlbeat.events import quoted, shown

UNSHOWN = {
    "line feed": ("a\nb", r"a\nb"),
    "carriage return": ("a\rb", r"a\rb"),
    "tabulator": ("a\tb", r"a\tb"),
    "null": ("a\0b", r"a\x00b"),
    "bell": ("a\ab", r"a\x07b"),
    "backspace": ("a\bb", r"a\x08b"),
    "escape sequence": ("\x1b[31mred", r"\x1b[31mred"),
    "delete": ("a\x7fb", r"a\x7fb"),
    "next line of C1": ("a\x85b", r"a\x85b"),
    "control sequence of C1": ("\x9b2J", r"\x9b2J"),
    "no-break space": ("a\xa0b", r"a\xa0b"),
    "line separator": ("a\u2028b", r"a\u2028b"),
    "paragraph separator": ("a\u2029b", r"a\u2029b"),
    "override of direction": ("\u202egpj.exe", r"\u202egpj.exe"),
    "isolate of direction": ("a\u2066b\u2069", r"a\u2066b\u2069"),
    "mark of direction": ("a\u200fb", r"a\u200fb"),
    "zero width": ("a\u200bb\ufeff", r"a\u200bb\ufeff"),
    "tag": ("a\U000e0041", r"a\U000e0041"),
    "lone surrogate": ("a\ud800", r"a\ud800"),
    "private use": ("a\ue000", r"a\ue000"),
}


@pytest.mark.parametrize("case", UNSHOWN)
def test_what_is_not_printed_is_escaped(case: str) -> None:
    text, expected = UNSHOWN[case]
    assert shown(text) == expected


@pytest.mark.parametrize(
    "text", ["", "nightly report", "zählung-日本", "Καλημέρα", "a=b", 'say "hi"', r"C:\jobs\new", "🎉"]
)
def test_a_clean_name_is_shown_as_it_is_so_that_it_can_be_copied(text: str) -> None:
    assert shown(text) == text


def test_a_backslash_beside_an_escape_is_doubled_so_that_no_escape_can_be_forged() -> None:
    assert shown("a\\nb\n") == r"a\\nb\n"


def test_what_is_no_text_is_shown_as_text() -> None:
    assert shown(7) == "7" and quoted(None) == "None"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nightly", "nightly"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "hi"', "'say \"hi\"'"),
        ("it's", '"it\'s"'),
        ('it\'s "hi"', r'''"it's \"hi\""'''),
        ("C:\\new", r'"C:\\new"'),
        ("a\nlease=lost", r'"a\nlease=lost"'),
    ],
)
def test_a_value_ends_where_it_seems_to_end(text: str, expected: str) -> None:
    assert quoted(text) == expected
