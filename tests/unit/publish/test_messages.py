"""What a message says about its claim."""

import ast
from datetime import datetime, timezone
from typing import Any

import pytest

from celery_sqlbeat.model import Claim, Slot
from celery_sqlbeat.publish import messages

SLOT = Slot("schedule", datetime(2026, 1, 1, tzinfo=timezone.utc), 3, 2, 0, None, None, True, None, False)
CLAIM = Claim("j1", "nightly", "shop.report", [1], {}, {}, "r1", "secret", 7, SLOT, 120.0, 3, True, None)


def test_the_header_carries_the_claim_and_what_the_ecosystem_reads() -> None:
    assert messages.header(CLAIM, "s1", "default") == {
        "sqlbeat": {
            "v": 1,
            "store": "s1",
            "namespace": "default",
            "run": "r1",
            "claim": "secret",
            "fence": 7,
            "lease": 120.0,
        },
        "celery_beat_task": True,
        "periodic_task_name": "nightly",
    }


def test_a_message_says_whether_it_was_fired_and_forgotten() -> None:
    leased = messages.header(CLAIM, "s1", "default")
    forgotten, to_several = dict(leased), dict(leased)
    messages.say_how(leased, is_leased=True, to_one_queue=True)
    assert leased == messages.header(CLAIM, "s1", "default")
    messages.say_how(forgotten, is_leased=False, to_one_queue=True)
    assert forgotten["sqlbeat"] == {**leased["sqlbeat"], "forgotten": True}
    messages.say_how(to_several, is_leased=False, to_one_queue=False)
    assert to_several == {"celery_beat_task": True, "periodic_task_name": "nightly"}


def test_headers_of_the_user_are_kept_and_ours_win() -> None:
    theirs = {"tenant": "a", "sqlbeat": "forged", "celery_beat_task": False}
    claim = CLAIM._replace(options={"headers": theirs, "queue": "q", "task_id": "theirs"})
    made = messages.options(claim, "s1", "default")
    assert made["headers"] == {"tenant": "a", **messages.header(claim, "s1", "default")}
    assert made["queue"] == "q" and made["task_id"] == "r1"
    assert theirs["sqlbeat"] == "forged", "what the claim holds stays as it is"


@pytest.mark.parametrize("name", ["nightly", "two\nlines", "", "x" * 5000, "ünïcode\u2028"])
def test_a_label_leaves_the_arguments_readable_as_python(name: str) -> None:
    label = messages.label(CLAIM._replace(job_name=name))
    assert ast.literal_eval(f"(1, 'two'){label}") == (1, "two")
    assert len(label) < 300 and label.endswith("attempt 3")


@pytest.mark.parametrize("options", [{}, {"headers": None}, {"headers": {}}])
def test_the_claim_id_stands_in_the_header_alone(options: dict[str, Any]) -> None:
    made = messages.options(CLAIM._replace(options=options), "s1", "default")
    made["headers"].pop("sqlbeat")
    assert "secret" not in repr(made) + messages.label(CLAIM)
