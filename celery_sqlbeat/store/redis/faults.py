"""What the errors of Redis and of redis-py mean."""

import re
from collections.abc import Mapping

import redis

from celery_sqlbeat.store.faults import Fault

# https://redis.io/docs/latest/develop/reference/ has no list; these are the words in its source.
_WORDS: Mapping[str, Fault] = {
    "LOADING": Fault.LOST,  # it has just started
    "READONLY": Fault.LOST,  # it became a replica: look for the primary again
    "MASTERDOWN": Fault.LOST,
    "CLUSTERDOWN": Fault.LOST,
    "MOVED": Fault.LOST,  # another node of the cluster has our slot now
    "ASK": Fault.TRANSIENT,  # our slot is on its way to another node
    "TRYAGAIN": Fault.TRANSIENT,
    "BUSY": Fault.TRANSIENT,  # somebody's script runs
    "OOM": Fault.THROTTLED,
    "MISCONF": Fault.THROTTLED,  # it cannot write its files
    "NOREPLICAS": Fault.THROTTLED,  # fewer than min-replicas-to-write
    "NOAUTH": Fault.FATAL,
    "WRONGPASS": Fault.FATAL,
    "NOPERM": Fault.FATAL,
    "WRONGTYPE": Fault.FATAL,
    "CROSSSLOT": Fault.FATAL,
}
# An error within a script stands behind a text of Redis 6.
_WORD = re.compile(rf"(?:^|-)({'|'.join(_WORDS)})\b")
_NO_MEMORY = "used memory > 'maxmemory'"  # what redis-py leaves of OOM
_HINTS = {
    "OOM": "the server has no memory left within its maxmemory",
    "MISCONF": "the server cannot write its files, and takes no writes",
    "NOREPLICAS": "the server has fewer replicas than its min-replicas-to-write",
}
# redis-py takes some words away, and gives the error a class instead.
_CLASSES: tuple[tuple[type[redis.RedisError], Fault], ...] = (
    (redis.exceptions.BusyLoadingError, Fault.LOST),
    (redis.exceptions.AuthorizationError, Fault.FATAL),
    (redis.exceptions.AuthenticationError, Fault.FATAL),
    (redis.exceptions.NoPermissionError, Fault.FATAL),
    (redis.exceptions.ReadOnlyError, Fault.LOST),
    (redis.exceptions.ClusterDownError, Fault.LOST),
    (redis.exceptions.MovedError, Fault.LOST),
    (redis.exceptions.AskError, Fault.TRANSIENT),
    (redis.exceptions.TryAgainError, Fault.TRANSIENT),
    (redis.exceptions.ConnectionError, Fault.LOST),
    (redis.exceptions.TimeoutError, Fault.LOST),
    (redis.exceptions.DataError, Fault.FATAL),
)
_FATAL_TEXT = re.compile(
    "ACL failure|invalid username-password|invalid password|without any password|unknown command"
    "|DB index|SELECT is not allowed|CERTIFICATE_VERIFY_FAILED|Hostname mismatch",
    re.IGNORECASE,
)


class ReplicaOnly(redis.ConnectionError):
    """The server can only be read."""


class ElsewhereOnly(redis.ConnectionError):
    """Another node of the cluster has the keys of this namespace."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"the keys are on {host}:{port}")
        self.host, self.port = host, port


class NotReplicated(redis.RedisError):
    """A write was not yet on as many replicas as are to have it."""


def fault_of(error: BaseException) -> Fault:
    """Classify an error by its first word, else by its class."""
    if not isinstance(error, redis.RedisError):
        return Fault.FATAL
    text = str(error)
    if _FATAL_TEXT.search(text):
        return Fault.FATAL
    if word := _word(error):
        return _WORDS[word]
    return next((fault for kind, fault in _CLASSES if isinstance(error, kind)), Fault.UNKNOWN)


def told(error: BaseException) -> str:
    """Return the text of an error in one line, behind what it means where its own does not say."""
    text = " ".join(str(error).split()) or type(error).__name__
    hint = _HINTS.get(_word(error) or "")
    return f"{hint}: {text}" if hint else text


def moved_to(error: BaseException, host: str) -> ElsewhereOnly | None:
    """Return where a node of a cluster sends us; one without a name means its own host."""
    if not isinstance(error, redis.ResponseError):
        return None
    words = str(error).split()
    if not isinstance(error, redis.exceptions.MovedError) and words[:1] != ["MOVED"]:
        return None
    named, _, port = words[-1].rpartition(":")
    return ElsewhereOnly(named.strip("[]") or host, int(port))


def _word(error: BaseException) -> str | None:
    text = str(error)
    match = _WORD.search(text)
    if match:
        return match[1]
    return "OOM" if _NO_MEMORY in text else None
