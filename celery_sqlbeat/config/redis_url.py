"""Read what the address of a Redis server says: its number, and its options."""

import re
from collections.abc import Mapping

from celery_sqlbeat.config import redaction
from celery_sqlbeat.config.url_parts import ENCODE, Unreadable, options_of

FORM = (
    f"write redis://user:password@host:port/0, rediss:// for TLS, or redis://host1,host2/0?sentinel=mymaster; {ENCODE}"
)
_SENTINEL = ("sentinel_username", "sentinel_password")
_TLS = ("ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_password", "ssl_check_hostname")
_CHOICES = {
    "ssl_cert_reqs": ("required", "optional", "none"),
    "ssl_check_hostname": ("true", "false"),
}


def number_and_options(parts: redaction.Parts) -> tuple[str, Mapping[str, str]]:
    """Return the number of the database on the server, and the options, or raise Unreadable."""
    number = parts.path.strip("/")
    if not re.fullmatch(r"/?|/\d{1,5}/?", parts.path):
        raise Unreadable(f"its database is not a number; {FORM}")
    options = options_of(parts.query)
    if unknown := options.keys() - {"sentinel", *_SENTINEL, *_TLS}:
        raise Unreadable(f"{min(unknown)} is no option; they are {', '.join(('sentinel', *_SENTINEL, *_TLS))}; {FORM}")
    for option in options:
        if option in _SENTINEL and not options.get("sentinel"):
            raise Unreadable(f"{option} says nothing without sentinel")
        if option in _TLS and parts.scheme != "rediss":
            raise Unreadable(f"{option} says nothing without TLS, which is rediss://")
    return number or "0", {name: _chosen(name, value) for name, value in options.items()}


def _chosen(name: str, value: str) -> str:
    """Return a value as redis-py has it: Celery's addresses have CERT_REQUIRED for required."""
    choices = _CHOICES.get(name)
    if choices is None:
        if not value:
            raise Unreadable(f"{name} is empty")
        return value
    value = value.lower().removeprefix("cert_")
    if value not in choices:
        raise Unreadable(f"{name} is one of {', '.join(choices)}")
    return value
