"""Why a message was not sent: what it is made of, or those who were to take it. Told by who raised.

Up to the point at which kombu turns to the broker, nothing but the message can be wrong.
"""

import traceback
from collections.abc import Iterator

from celery.beat import SchedulingError
from kombu.exceptions import OperationalError

# The arguments of an entry are worked out here; whatever a function of the shop raises there is about its arguments.
_ARGUMENTS = {("celery.beat", "_evaluate_entry_args"), ("celery.beat", "_evaluate_entry_kwargs")}
# What turns a message into bytes, and speaks to nobody. Some transports do so after kombu has turned to them.
_WRITERS = ("json", "kombu.utils.json", "kombu.serialization", "kombu.compression", "amqp.serialization")
_RESULTS = "celery.backends."  # Celery subscribes to the result before it sends
_WIRES = ("kombu.", "amqp.", "redis.")  # of a task that sends over a connection of its own


def cause_of(error: BaseException) -> BaseException:
    """What went wrong, without what Celery's scheduler and kombu put around it."""
    inside = error.__cause__ or error.__context__
    return cause_of(inside) if type(error) in (SchedulingError, OperationalError) and inside is not None else error


def is_in_the_message(error: BaseException, has_turned: bool, away: tuple[type[BaseException], ...]) -> bool:
    """Whether this message can never be sent as it is; `has_turned`: it got as far as the broker.

    `away` are the errors by which the broker's client says that it is away.
    """
    cause = cause_of(error)
    if isinstance(cause, MemoryError):
        return False
    raisers = {*_raisers(error), *_raisers(cause)}
    modules = {module for module, _ in raisers}
    if raisers & _ARGUMENTS or any(module in _WRITERS or module.startswith("json.") for module in modules):
        return True
    if has_turned or any(module.startswith(_RESULTS) for module in modules):
        return False
    return not (isinstance(cause, (OperationalError, *away)) and any(module.startswith(_WIRES) for module in modules))


def _raisers(error: BaseException) -> Iterator[tuple[str, str]]:
    for frame, _ in traceback.walk_tb(error.__traceback__):
        yield str(frame.f_globals.get("__name__")), frame.f_code.co_name
