"""What an error of a driver means for the caller. Each database has its own classifier; the classes are the same."""

from collections.abc import Mapping
from enum import Enum


class Fault(Enum):
    """The classes of database errors; each has its own wait before the work is tried again."""

    DEADLOCK = "deadlock"  # the server chose this transaction as the victim: again at once
    TRANSIENT = "transient"  # a lock, a statement time-out, a busy file: again soon
    THROTTLED = "throttled"  # the server has too much to do: again later
    LOST = "lost"  # no connection, or it broke: again on a new one
    AMBIGUOUS = "ambiguous"  # the answer to a commit did not come: ask what became of it
    UNKNOWN = "unknown"  # an error that no list has: a new connection, ask what became of the work, again
    CONFLICT = "conflict"  # a unique key is taken: the caller knows why
    REFUSED = (
        "refused"  # a value, a constraint or a trigger refuses some row: the other rows of the batch could be written
    )
    FATAL = "fatal"  # can never succeed as it is: syntax, a missing table or column, rights


AGAIN = frozenset({Fault.DEADLOCK, Fault.TRANSIENT, Fault.THROTTLED, Fault.LOST, Fault.AMBIGUOUS, Fault.UNKNOWN})
AWAY = frozenset({Fault.THROTTLED, Fault.LOST, Fault.AMBIGUOUS})  # what opens the circuit breaker
SLOW = AWAY | {Fault.TRANSIENT, Fault.UNKNOWN}  # what may have kept the caller waiting, and would do so again
UNCERTAIN = frozenset({Fault.LOST, Fault.AMBIGUOUS, Fault.UNKNOWN})  # it may have committed, and the session goes

# Seconds before the next try: the first wait and the longest; doubling between them, with full jitter.
WAITS = {
    Fault.DEADLOCK: (0.005, 0.1),
    Fault.TRANSIENT: (0.02, 0.5),
    Fault.THROTTLED: (0.5, 2.0),
    Fault.LOST: (0.05, 1.0),
    Fault.AMBIGUOUS: (0.05, 1.0),
    Fault.UNKNOWN: (0.05, 1.0),
}

READ_ONLY = "can only be read"  # what our error says of a standby


def by_state(states: Mapping[str, Fault], state: str) -> Fault:
    """What a SQLSTATE means; the longest prefix that is known decides: the code itself, a driver's family, a class.

    A state that no table has never means that trying again is in vain.
    """
    for length in (5, 3, 2):
        fault = states.get(state[:length])
        if fault is not None:
            return fault
    return Fault.UNKNOWN
