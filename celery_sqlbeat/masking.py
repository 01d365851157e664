"""What in a database URL is secret, and how text is shown without it. Never raises; in doubt it shows less."""

import re
import urllib.parse
from typing import NamedTuple

HIDDEN = "***"
ODBC = "mssql+odbc:"
LONGEST = 8192  # characters; a longer text is no URL that anybody wrote

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,19})://")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%]*\]|[^:\[\]]*)(?::[0-9]{0,5})?")
_SECRET = re.compile(r"pass|pwd|secret|token|key|credential|signature", re.IGNORECASE)
_IN_A_STRING = re.compile(
    r"(\b(?:pwd|password|accesstoken)\s*=\s*)(?:\{(?:[^}]|\}\})*\}|'[^']*'|[^;\s]+)", re.IGNORECASE
)
_LONG_ENOUGH = 6  # characters; masking a shorter value of an option that only might be secret would garble an error

# Options whose values are shown; any other is masked, since half of a badly quoted password may look like an option.
_SHOWN = frozenset(
    """
    addr address ansinpw app applicationintent applicationname authentication autotranslate channelbinding
    clientencoding clientid columnencryption connectretrycount connectretryinterval connecttimeout database dbname
    driver dsn encrypt fallbackapplicationname filedsn gssencmode host hostaddr hostnameincertificate identity
    keepalive keepaliveinterval keepalives keepalivescount keepalivesidle keepalivesinterval language loadbalancehosts
    logintimeout marsconnection multisubnetfailover options packetsize port quotedid regional server servercertificate
    service sslcert sslcertmode sslcrl sslmaxprotocolversion sslminprotocolversion sslmode sslnegotiation sslrootcert
    targetsessionattrs tcpusertimeout tenantid transparentnetworkipresolution trustedconnection trustservercertificate
    uid user wsid
    """.split()  # noqa: SIM905 - a list of sixty literals reads worse
)

_KNOWN_SECRETS = frozenset(["pwd", "password", "sslpassword", "accesstoken", "token", "secret"])


class Parts(NamedTuple):
    """A URL cut into its parts, each as it is written."""

    scheme: str
    userinfo: str | None
    hosts: str
    path: str
    query: str


class OdbcPair(NamedTuple):
    """One keyword of an ODBC connection string, its value without the quoting, and the pair as it is written."""

    key: str
    value: str
    written: str


def split_url(text: str) -> Parts | None:
    """Cut a URL into its parts; None where a part of the password might be taken for something else."""
    match = _SCHEME.match(text)
    if match is None or "#" in text or len(text) > LONGEST or not text.isprintable():
        return None
    before, _, query = text[match.end() :].partition("?")
    authority, slash, path = before.partition("/")
    scheme = match[1].lower()
    userinfo, at, hosts = authority.rpartition("@")
    if scheme == "sqlite":
        if authority:
            return None
    # An @ further on means that a password holds a raw / or ?, so that what looks like a port or a path is secret.
    elif "@" in path + query or not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        return None
    return Parts(scheme, userinfo if at else None, hosts, slash + path, query)


def odbc_pairs(string: str) -> list[OdbcPair] | None:
    """Cut an ODBC connection string into its pairs; None if it is not well formed."""
    pairs, start = [], 0
    if len(string) > LONGEST or not string.isprintable():
        return None
    while string[start:].strip(" ;"):
        start += len(string[start:]) - len(string[start:].lstrip(" ;"))
        equals = string.find("=", start)
        key = string[start:equals].strip()
        if equals < 0 or not key or re.search(r"[;{}]", key):
            return None
        begin = equals + 1 + len(string[equals + 1 :]) - len(string[equals + 1 :].lstrip())
        if string.startswith("{", begin):
            braced = _BRACED.match(string, begin)
            if braced is None:
                return None
            value, end = braced[1].replace("}}", "}"), braced.end()
        else:
            end = string.find(";", begin) % (len(string) + 1)  # -1, no semicolon, is the end of the string
            value = string[begin:end].strip()
        pairs.append(OdbcPair(key.lower(), value, string[start:end].strip()))
        start = end + 1
    return pairs


_BRACED = re.compile(r"\{((?:[^}]|\}\})*)\}\s*(?=;|$)")


def masked(url: str) -> str:
    """Show a database URL without its secrets; of one that cannot be read, the scheme at most."""
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
        # A colon that is written %3A may hide a password, too; and so may pairs as ODBC has them.
        shown += HIDDEN if re.search("[:;=]", urllib.parse.unquote(user)) else user
        shown += f":{HIDDEN}@" if colon else "@"
    shown += parts.hosts + parts.path
    return shown + ("?" + "&".join(map(_masked_option, parts.query.split("&"))) if parts.query else "")


def _masked_pair(pair: OdbcPair) -> str:
    return pair.written if _is_shown(pair.key) else _hidden(pair.key)


def _masked_option(option: str) -> str:
    key, equals, value = option.partition("=")
    if not equals:
        return HIDDEN
    # A value that holds pairs of its own, as in odbc_connect=..., is not looked into.
    shown = _is_shown(urllib.parse.unquote(key)) and not re.search("[=;]", urllib.parse.unquote(value))
    return option if shown else _hidden(key)


def _hidden(key: str) -> str:
    # An unknown keyword may be the second half of a password that holds a semicolon or an ampersand.
    return f"{key}={HIDDEN}" if key.lower() in _KNOWN_SECRETS else HIDDEN


def _is_shown(key: str) -> bool:
    return key.lower().replace(" ", "").replace("_", "") in _SHOWN


def mask_text(text: str, url: str) -> str:
    """Return the text, say of a driver's error, without the secrets of this URL."""
    text = text.replace(url, masked(url))
    for secret in _secrets(url):
        text = text.replace(secret, HIDDEN)
    return _IN_A_STRING.sub(rf"\1{HIDDEN}", text)


def _secrets(url: str) -> list[str]:
    """Every secret of the URL in each form in which a driver may repeat it, the longest first."""
    values: list[tuple[str, str]] = []  # of option and value
    if url.lower().startswith(ODBC):
        values = [(pair.key, pair.value) for pair in odbc_pairs(url[len(ODBC) :]) or ()]
    elif parts := split_url(url):
        options = [option.partition("=")[::2] for option in parts.query.split("&")]
        values = [("password", (parts.userinfo or "").partition(":")[2]), *options]
        values += [(urllib.parse.unquote(key), urllib.parse.unquote(value)) for key, value in values]
    found = {
        value for key, value in values if _SECRET.search(key) or (not _is_shown(key) and len(value) >= _LONG_ENOUGH)
    }
    forms = {form for value in found for form in (value, value.replace("}", "}}"), repr(value)[1:-1])}
    return sorted(forms - {""}, key=len, reverse=True)
