"""What users import, call and type changes only where somebody means it."""

import difflib

from tests.public_api import SNAPSHOT, public_api


def test_the_public_names_are_those_of_the_snapshot() -> None:
    """A failure is no mistake in itself.

    Run `make api`, read the difference, and tell users of it.
    """
    expected, found = SNAPSHOT.read_text(encoding="utf-8"), public_api()
    name = SNAPSHOT.name
    changes = "\n".join(
        difflib.unified_diff(expected.splitlines(), found.splitlines(), name, "the code", lineterm="", n=1)
    )
    assert expected == found, (
        f"the public API has changed:\n{changes}\n"
        f"If this is meant: run `make api`, commit tests/{name}, and add a line to CHANGELOG.md. "
        "A name that goes away is deprecated first."
    )


def test_the_snapshot_holds_what_users_are_told_to_call() -> None:
    """Guards against a walk that ends too early and would then compare nothing with nothing."""
    lines = set(SNAPSHOT.read_text(encoding="utf-8").splitlines())
    assert {"[settings]", "jobs put", "class Job", "class Run", "class CurrentRun", "  lost: bool"} <= lines
    assert any(line.startswith("  run_now(name: str") for line in lines)
    assert any(line.startswith("sqlbeat_lock_timeout = 120") for line in lines)
