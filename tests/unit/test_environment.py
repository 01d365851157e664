"""Run ids are ascending UUIDs of version 7, claim ids 128 random bits, and calls are punctual."""

import threading
from functools import partial
from uuid import UUID

from celery_sqlbeat import environment, events
from celery_sqlbeat.environment import Ids, Later

AT = 0x0123456789AB  # milliseconds


def fixed(byte: int = 0xFF) -> Ids:
    """Ids from one byte and one instant."""
    return Ids(lambda count: bytes([byte]) * count, lambda: AT)


def test_run_ids_are_uuids_of_version_7() -> None:
    for text in Ids().run_ids(1000):
        found = UUID(text)
        assert str(found) == text
        assert found.version == 7
        assert found.variant == "specified in RFC 4122"


def test_a_run_id_begins_with_its_millisecond() -> None:
    (text,) = fixed().run_ids(1)
    assert UUID(text).int >> 80 == AT


def test_the_variant_is_right_whatever_the_noise() -> None:
    for byte in range(256):
        assert UUID(fixed(byte).run_ids(1)[0]).variant == "specified in RFC 4122"


def test_run_ids_of_a_batch_ascend_and_differ_though_the_noise_repeats() -> None:
    """A batch larger than the counter of one millisecond borrows from the next ones."""
    made = fixed().run_ids(10_000)
    assert made == sorted(set(made))
    assert UUID(made[-1]).int >> 80 == AT + 2


def test_the_noise_of_run_ids_is_62_bits_of_their_own() -> None:
    tails = {UUID(text).int & (1 << 62) - 1 for text in Ids(milliseconds=lambda: AT).run_ids(1000)}
    assert len(tails) == 1000
    assert UUID(fixed(0xFF).run_ids(1)[0]).int & (1 << 62) - 1 == (1 << 62) - 1
    assert UUID(fixed(0x00).run_ids(1)[0]).int & (1 << 62) - 1 == 0


def test_no_bit_of_a_claim_id_is_fixed() -> None:
    ones, zeros = 0, 0
    for text in Ids().claim_ids(200):
        assert str(UUID(text)) == text
        ones |= UUID(text).int
        zeros |= ~UUID(text).int & (1 << 128) - 1
    assert ones == zeros == (1 << 128) - 1


def test_claim_ids_are_the_noise_itself() -> None:
    noise = bytes(range(32))
    made = Ids(lambda count: noise[:count]).claim_ids(2)
    assert b"".join(UUID(text).bytes for text in made) == noise


def test_no_ids_are_made_where_none_are_asked_for() -> None:
    assert Ids().run_ids(0) == Ids().claim_ids(0) == []


def test_one_id_is_a_random_uuid() -> None:
    ids = Ids()
    assert ids.random_id() != ids.random_id()
    assert UUID(ids.random_id()).version == 4


def test_things_are_called_later_in_their_order() -> None:
    seconds, done = [0.0], list[str]()
    is_called, may_go_on, over = threading.Event(), threading.Event(), threading.Event()
    later = Later(lambda: seconds[0])

    def hold() -> None:
        is_called.set()
        may_go_on.wait(10)

    later.after(0.0, hold)
    assert is_called.wait(10)
    later.after(3.0, over.set)
    later.after(2.0, lambda: done.append("b"))
    later.after(1.0, lambda: done.append("a"))
    seconds[0] = 3.0  # a thread that had to wait for the machine finds all of them due
    may_go_on.set()
    assert over.wait(10)
    assert done == ["a", "b"]


def test_the_error_of_a_callback_names_the_function_and_shows_none_of_its_arguments() -> None:
    """The repr of a bound method shows its object: that of a request has the task's arguments."""

    class Request:
        def __repr__(self) -> str:
            return "<Request: shop.pay[1] ('s3kr1t',)>"

        def end(self, *_: object) -> None:
            raise RuntimeError("broken")

    request = Request()
    with events.recorded() as emitted:
        environment.call_safely(partial(request.end, "s3kr1t"))
        environment.call_safely(request.end)
    assert [event.name for event in emitted] == ["fault_caught"] * 2
    assert "s3kr1t" not in repr(emitted)
    assert all(str(event.fields["subject"]).endswith("Request.end") for event in emitted)
