"""Which broker an app talks to, as text without credentials, and whether two such texts name different brokers.

Opens nothing. One server has many names, so hosts that differ are no proof; another kind, or another space on it, is.
"""

import hashlib
from typing import Any

LONGEST = 200  # characters, as wide as the column
_PORTS = {"amqp": 5672, "redis": 6379, "sentinel": 26379}
_SPACES = {"amqp": "/", "redis": "0", "sentinel": "0"}  # where a URL names none
_FAMILIES = {"amqps": "amqp", "pyamqp": "amqp", "librabbitmq": "amqp", "rediss": "redis"}


def fingerprint(connection: Any) -> str:
    """What a kombu connection leads to: `redis//db.example:6379/0`; the key prefix follows a `#`."""
    from kombu.utils.url import parse_url  # late: whoever only compares needs no kombu

    parts = [parse_url(url) for url in connection.alt] or [
        {"hostname": connection.hostname, "port": connection.port, "virtual_host": connection.virtual_host}
    ]
    family = _family(parts[0].get("transport") or str(connection.transport_cls))
    options = connection.transport_options or {}
    hosts = sorted({_host(part, family, options) for part in parts})
    space = _space(parts[0]["virtual_host"], family)
    prefix = options.get("global_keyprefix")
    tail = f"/{space}" + (f"#{prefix}" if prefix else "")
    whole = f"{family}//{','.join(hosts)}{tail}"
    if len(whole) <= LONGEST:
        return whole
    return f"{family}//{_digest(','.join(hosts))}{tail if len(tail) <= LONGEST // 2 else '/' + _digest(tail)}"


def differ_for_certain(one: str, other: str) -> bool:
    """Whether messages sent to the one can never be taken from the other: another kind, or another space on it."""
    return _kind_and_space(one) != _kind_and_space(other)


def _family(transport: str) -> str:
    name = transport.lower().partition("+")[0]
    return _FAMILIES.get(name, name)


def _host(part: dict[str, Any], family: str, options: dict[str, Any]) -> str:
    if part["hostname"] and "://" in part["hostname"]:  # a socket's path, as kombu keeps it; one more name of a host
        return "socket"
    if part["hostname"] is None:
        # A transport without a server lives in a folder; one with a server has its default there.
        folder = options.get("data_folder_out") or options.get("data_folder")
        if folder:
            return str(folder)
    port = part["port"] or _PORTS.get(family)
    host = part["hostname"] or "localhost"
    return f"{host}:{port}" if port else str(host)


def _space(virtual_host: str | None, family: str) -> str:
    default = _SPACES.get(family, "")
    return (virtual_host or "").lstrip("/") or default


def _kind_and_space(text: str) -> tuple[str, str]:
    family, _, rest = text.partition("//")
    return family, rest.partition("/")[2]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
