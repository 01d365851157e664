"""Say what a Redis server may lose, and what is set wrongly for a store."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from celery_sqlbeat.errors import StoreError, TransientError
from celery_sqlbeat.store.records import Remark

Ask = Callable[..., Any]

_SET = "set it with CONFIG SET, and in the server's configuration"
_AFTER_LOSS = "after a loss run celery -A app sqlbeat init --recovered"


def remarks(ask: Ask, replicas: int) -> list[Remark]:
    """Return the remarks; `replicas`: how many are to have a write before it counts."""
    remarked: list[Remark] = []
    try:
        remarked += _of_configuration(lambda name: _pairs(ask("CONFIG", "GET", name)).get(name, ""))
    except TransientError:
        raise
    except StoreError as error:  # a user without the right, or a service that has no such command
        remarked.append(
            Remark(
                "note",
                "redis",
                f"CONFIG GET is refused, so it is not known what the server may lose: {error}",
                "see that it has appendonly yes and maxmemory-policy noeviction, or allow +config|get",
            )
        )
    try:
        connected = int(_info(ask("INFO", "replication")).get("connected_slaves", "0"))
    except TransientError:
        raise
    except StoreError as error:
        remarked.append(
            Remark(
                "note",
                "redis",
                f"INFO is refused, so the replicas are not known: {error}",
                "allow +info",
            )
        )
    else:
        remarked += _of_replicas(connected, replicas)
    return remarked


def _of_configuration(read: Callable[[str], str]) -> Iterator[Remark]:
    policy = read("maxmemory-policy")
    if policy != "noeviction":
        says = f"maxmemory-policy is {policy}: when its memory is full, the server drops keys, and with them jobs"
        yield Remark("error", "redis", says, f"maxmemory-policy noeviction: {_SET}")
    if read("appendonly") != "yes":
        says = "appendonly is no: a crash loses every write since the last snapshot"
        yield Remark("warning", "redis", says, f"appendonly yes: {_SET}; {_AFTER_LOSS}")
        return
    sync = read("appendfsync")
    if sync == "everysec":
        says = "appendfsync is everysec: a crash of the machine loses the writes of about a second"
        yield Remark("note", "redis", says, f"appendfsync always, where that is too much; {_AFTER_LOSS}")
    elif sync != "always":
        says = f"appendfsync is {sync}: a crash of the machine loses what its system had not written, about 30 seconds"
        yield Remark("warning", "redis", says, f"appendfsync everysec or always: {_SET}; {_AFTER_LOSS}")


def _of_replicas(connected: int, wanted: int) -> Iterator[Remark]:
    if wanted > connected:
        says = f"a write counts when {wanted} replicas have it, but {connected} are connected: none counts"
        yield Remark("error", "redis", says, "start the replicas, or lower sqlbeat_redis_replicas")
    elif connected and not wanted:
        says = "replicas get writes after they are answered: a fail-over loses the last ones"
        yield Remark("note", "redis", says, f"set sqlbeat_redis_replicas to 1 or more; {_AFTER_LOSS}")


def _pairs(answer: Any) -> Mapping[str, str]:
    """Return names and values, which an older protocol has in one list."""
    if not isinstance(answer, Mapping):
        answer = dict(zip(answer[::2], answer[1::2], strict=True))
    return {_text(name): _text(value) for name, value in answer.items()}


def _info(answer: Any) -> Mapping[str, str]:
    lines = (line.partition(":") for line in _text(answer).splitlines())
    return {name: value for name, colon, value in lines if colon}


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
