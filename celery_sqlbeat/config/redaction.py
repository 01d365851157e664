"""Hide the secrets of URLs in text that is shown. Never raises; in doubt it shows less."""

import re
import urllib.parse
from typing import NamedTuple

HIDDEN = "***"
ODBC = "mssql+odbc:"
LONGEST = 8192  # characters; nobody writes a longer URL

HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]*)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]{0,5}))?")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,19})://")
_ODBC_PAIR = re.compile(
    r"[ ;]*(?P<pair>(?P<key>[^=;{} ](?:[^=;{}]*[^=;{} ])?) *="
    r"(?: *\{(?P<braced>(?:[^}]|\}\})*)\} *(?=;|$)|(?! *\{)(?P<plain>[^;]*)))"
)
_SECRET = re.compile(r"pass|pwd|secret|token|key|credential|signature", re.IGNORECASE)
_SECRET_IN_TEXT = re.compile(
    r"(\b(?:pwd|password|accesstoken)\s*=\s*)(?:\{(?:[^}]|\}\})*\}|'[^']*'|[^;\s]+)", re.IGNORECASE
)
# Characters; to hide a shorter value of an option that only might be secret would garble an error.
_LONG_ENOUGH = 6

# The options whose values are shown. Any other is hidden, since the second half of a password that
# is badly quoted looks like an option.
_SHOWN = frozenset(
    """
    addr address ansinpw app applicationintent applicationname authentication autotranslate channelbinding
    clientencoding clientid columnencryption connectretrycount connectretryinterval connecttimeout database dbname
    driver dsn encrypt fallbackapplicationname filedsn gssencmode host hostaddr hostnameincertificate identity
    keepalive keepaliveinterval keepalives keepalivescount keepalivesidle keepalivesinterval language
    loadbalancehosts logintimeout marsconnection multisubnetfailover options packetsize port quotedid regional
    sentinel sentinelusername server servercertificate service sslca sslcacerts sslcert sslcertfile sslcertmode
    sslcertreqs sslcheckhostname sslcrl sslmaxprotocolversion sslminprotocolversion sslmode sslnegotiation
    sslrootcert targetsessionattrs tcpusertimeout tenantid transparentnetworkipresolution trustedconnection
    trustservercertificate uid unixsocket user wsid
    """.split()  # noqa: SIM905 - a list of sixty literals reads worse
)
_KNOWN_SECRETS = frozenset(
    ["pwd", "password", "sslpassword", "ssl_password", "sentinel_password", "accesstoken", "token", "secret"]
)


class Parts(NamedTuple):
    """A URL cut into its parts, each as given."""

    scheme: str
    userinfo: str | None
    hosts: str
    path: str
    query: str


class OdbcPair(NamedTuple):
    """A keyword of an ODBC connection string in lower case, its value, and the pair as given."""

    key: str
    value: str
    text: str


def split_url(text: str) -> Parts | None:
    """Cut a URL into its parts; None where some of a password might pass for another part."""
    match = _SCHEME.match(text)
    if match is None or "#" in text or len(text) > LONGEST or not text.isprintable():
        return None
    scheme = match[1].lower()
    before, _, query = text[match.end() :].partition("?")
    authority, slash, path = before.partition("/")
    userinfo, at, hosts = authority.rpartition("@")
    if scheme == "sqlite":
        is_clear = not authority
    else:
        # With a later @ a password holds a raw / or ?: what looks like a port or path is secret.
        is_clear = "@" not in path + query and all(map(HOST.fullmatch, hosts.split(",")))
    return Parts(scheme, userinfo if at else None, hosts, slash + path, query) if is_clear else None


def odbc_pairs(string: str) -> list[OdbcPair] | None:
    """Cut an ODBC connection string into its pairs; None if it is malformed."""
    pairs, start = list[OdbcPair](), 0
    if len(string) > LONGEST or not string.isprintable():
        return None
    while string[start:].strip(" ;"):
        match = _ODBC_PAIR.match(string, start)
        if match is None:
            return None
        value = match["plain"].strip() if match["braced"] is None else match["braced"].replace("}}", "}")
        pairs.append(OdbcPair(match["key"].lower(), value, match["pair"].strip()))
        start = match.end()
    return pairs


def masked(url: str) -> str:
    """Return a URL without its secrets; of one that cannot be read, the scheme at most."""
    if url.lower().startswith(ODBC):
        pairs = odbc_pairs(url[len(ODBC) :])
        return url[: len(ODBC)] + (HIDDEN if pairs is None else ";".join(map(_masked_pair, pairs)))
    parts = split_url(url)
    if parts is None:
        match = _SCHEME.match(url)
        return (match[0] if match else "") + HIDDEN
    shown = f"{parts.scheme}://"
    if parts.userinfo is not None:
        user, colon, _ = parts.userinfo.partition(":")
        # A colon given as %3A may hide a password, and so may pairs as ODBC has them.
        shown += HIDDEN if re.search("[:;=]", urllib.parse.unquote(user)) else user
        shown += f":{HIDDEN}@" if colon else "@"
    shown += parts.hosts + parts.path
    return shown + ("?" + "&".join(map(_masked_option, parts.query.split("&"))) if parts.query else "")


def _masked_pair(pair: OdbcPair) -> str:
    return pair.text if _is_shown(pair.key) else _hidden(pair.key)


def _masked_option(option: str) -> str:
    key, equals, value = option.partition("=")
    if not equals:
        return HIDDEN
    # A value may hold pairs of its own, as that of odbc_connect does; these are not read.
    is_shown = _is_shown(urllib.parse.unquote(key)) and not re.search("[=;]", urllib.parse.unquote(value))
    return option if is_shown else _hidden(key)


def _hidden(key: str) -> str:
    # An unknown keyword may be the second half of a password that holds a raw ; or &.
    return f"{key}={HIDDEN}" if key.lower() in _KNOWN_SECRETS else HIDDEN


def _is_shown(key: str) -> bool:
    return key.lower().replace(" ", "").replace("_", "") in _SHOWN


def is_secret(name: str) -> bool:
    """Return whether the value of this name is one to hide."""
    return _SECRET.search(name) is not None


def mask_text(text: str, url: str) -> str:
    """Return a text, for instance a driver's error, without the secrets of a URL."""
    text = text.replace(url, masked(url))
    for secret in _secrets(url):
        text = text.replace(secret, HIDDEN)
    return _SECRET_IN_TEXT.sub(rf"\1{HIDDEN}", text)


def _secrets(url: str) -> list[str]:
    """Return the secrets of a URL in each form in which a driver may repeat them, longest first."""
    options: list[tuple[str, str]] = []
    if url.lower().startswith(ODBC):
        options = [(pair.key, pair.value) for pair in odbc_pairs(url[len(ODBC) :]) or ()]
    elif parts := split_url(url):
        options = [("password", (parts.userinfo or "").partition(":")[2])]
        options += [option.partition("=")[::2] for option in parts.query.split("&")]
        options += [(urllib.parse.unquote(key), urllib.parse.unquote(value)) for key, value in options]
    secrets = {
        value for key, value in options if _SECRET.search(key) or (not _is_shown(key) and len(value) >= _LONG_ENOUGH)
    }
    forms = {form for value in secrets for form in (value, value.replace("}", "}}"), repr(value)[1:-1])}
    return sorted(forms - {""}, key=len, reverse=True)
