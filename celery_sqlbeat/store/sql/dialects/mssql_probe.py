"""Ask whether the port of a SQL Server refuses connections, before Microsoft's driver asks.

The driver tries a refused port again until the whole login time-out has passed.
"""

import contextlib
import re
import socket
from collections.abc import Callable

from celery_sqlbeat.config.database_url import DatabaseUrl
from celery_sqlbeat.config.redaction import odbc_pairs

LONGEST = 1.0  # seconds for an answer; a refusal is one round trip
DEFAULT_PORT = 1433
_SERVER_KEYS = ("server", "address", "addr")  # in the order in which ODBC looks at them
# "tcp:host\instance,port": with a port the driver does not look at the instance.
_SERVER = re.compile(r"(?:tcp:)?\[?(?P<host>[^\\,\[\]]+)\]?(?:\\[^,]*)?, *(?P<port>\d{1,5})", re.IGNORECASE)
_PARTNER = "failover_partner"  # where the driver turns to after a refusal

Probe = Callable[[DatabaseUrl, float], None]
"""Raises PortRefused, or leaves the verdict to the driver."""


class PortRefused(Exception):
    """Nobody listens there; the message names host and port."""


def probe(url: DatabaseUrl, seconds: float) -> None:
    """Raise PortRefused where every address of the host refuses a connection.

    Anything else is no evidence: the driver may know a name, or have a patience, that we have not.
    """
    named = named_port(url)
    if named is None:
        return
    host, port = named
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return
    if all(_refuses(address[0], address[4], min(seconds, LONGEST) / len(addresses)) for address in addresses):
        raise PortRefused(f"connection refused by {host}, port {port}")


def no_probe(url: DatabaseUrl, seconds: float) -> None:
    """Leave the verdict to the driver."""


def named_port(url: DatabaseUrl) -> tuple[str, int] | None:
    """Return host and port of an address; None where the driver has to find one of them."""
    if url.odbc is None:
        if url.host is None or _PARTNER in {key.lower() for key in url.options}:
            return None
        if url.port is None and url.instance is not None:  # SQL Server Browser tells the port
            return None
        return url.host, url.port or DEFAULT_PORT
    pairs = {pair.key: pair.value for pair in reversed(odbc_pairs(url.odbc) or ())}
    server = next((pairs[key] for key in _SERVER_KEYS if key in pairs), "")
    match = None if _PARTNER in pairs else _SERVER.fullmatch(server.strip())
    return (match["host"].strip(), int(match["port"])) if match else None


def _refuses(family: int, address: tuple[object, ...], seconds: float) -> bool:
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(seconds)
        try:
            client.connect(address)
        except ConnectionRefusedError:
            return True
    return False
