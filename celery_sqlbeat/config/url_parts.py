"""Read the parts that the addresses of all databases have. No reason shows a secret."""

import re
import urllib.parse

from celery_sqlbeat.config import redaction

ENCODE = "in user, password and options write @ : / ? # & % as %40 %3A %2F %3F %23 %26 %25"
_OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")  # nothing that could end an ODBC keyword

Hosts = tuple[tuple[str, int | None], ...]


class Unreadable(Exception):
    """Why an address cannot be read; it is raised as a SettingError."""


def user_of(parts: redaction.Parts) -> tuple[str | None, str | None]:
    """Return the user and the password."""
    if parts.userinfo is None:
        return None, None
    user, colon, password = parts.userinfo.partition(":")
    return urllib.parse.unquote(user), urllib.parse.unquote(password) if colon else None


def hosts_of(text: str) -> Hosts:
    """Return the hosts, each with its port where it has one."""
    return tuple(map(_host, text.split(","))) if text else ()


def _host(text: str) -> tuple[str, int | None]:
    match = redaction.HOST.fullmatch(text)
    if match is None or match["v6"] == "" or match["port"] == "":
        raise Unreadable("its host or port cannot be read; write host, host:port or [ipv6]:port")
    name = match["v6"] or urllib.parse.unquote(match["name"])
    if match["v6"] is None and not re.fullmatch(r"[\w./-]*", name):
        raise Unreadable("its host holds a character that no host has")
    port = int(match["port"]) if match["port"] else None
    if port is not None and not 0 < port < 65536:
        raise Unreadable("its port is not from 1 to 65535")
    return name, port


def options_of(query: str) -> dict[str, str]:
    """Return what follows the question mark."""
    options: dict[str, str] = {}
    for pair in filter(None, query.split("&")):
        key, equals, value = pair.partition("=")
        if not equals or not _OPTION.fullmatch(key):
            raise Unreadable("what follows the ? is not name=value&name=value")
        if key.lower() in map(str.lower, options):
            raise Unreadable("it has an option twice")
        options[key] = urllib.parse.unquote(value)
    return options
