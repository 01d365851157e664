"""Access tokens of Entra ID, by which a process logs in to SQL Server without a password.

One token serves all connections that log in alike. No token has a repr that shows it.
"""

import importlib.util
import os
import re
import struct
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

from celery_sqlbeat import environment, events
from celery_sqlbeat.config.database_url import DatabaseUrl
from celery_sqlbeat.config.redaction import odbc_pairs
from celery_sqlbeat.errors import DriverMissing, StoreError

RENEW_SECONDS = 300.0  # before its end a token is renewed; earlier, credentials give the same again
RETIRE_SECONDS = 60.0  # before its end a token is used no more, nor connections made with it
RETRY_SECONDS = 10.0  # between two requests to a credential
_FRESH_SECONDS = 60.0  # a token so young was not refused for its age
_LONGEST_REASON = 400  # characters; a chain of credentials reports each that it tried

ACCESS_TOKEN = 1256  # SQL_COPT_SS_ACCESS_TOKEN of Microsoft's driver, set before it connects
NO_TOKEN = "no access token for the database"  # noqa: S105 - the beginning of an error

# Three parts in base64, as tokens are written; the error of a credential should hold none.
_LIKE_A_TOKEN = re.compile(r"[\w-]{8,}\.[\w-]{8,}\.[\w-]*")


class TokenUnavailable(Exception):
    """No access token can be had for now; the message says why."""


class Token:
    """An access token as the driver takes it, with its instants on the monotonic clock."""

    __slots__ = ("_packed", "came_at", "ends_at")

    def __init__(self, text: str, came_at: float, ends_at: float) -> None:
        encoded = text.encode("utf-16-le")
        self._packed = struct.pack("<I", len(encoded)) + encoded
        self.came_at = came_at
        self.ends_at = ends_at

    def attributes(self) -> dict[int, bytes]:
        """Return what the driver is told before it connects."""
        return {ACCESS_TOKEN: self._packed}

    def is_same(self, other: "Token | None") -> bool:
        """Return whether both have the same text."""
        return other is not None and self._packed == other._packed

    def __repr__(self) -> str:
        return "<access token>"


class Tokens:
    """The current token of one identity.

    A credential is asked in a native thread, since it may retry for a minute: who connects waits no
    longer than its patience, and not at all while the last token is good. `make_source` makes a
    credential, once per process and after a refusal, and returns how to ask it: for a text and its
    end in seconds of the epoch. The rest of a token's life is counted from its arrival, so that a
    jump of this host's clock changes nothing.
    """

    def __init__(
        self,
        make_source: Callable[[], Callable[[], Any]],
        clock: Callable[[], float] = environment.monotonic,
        wall: Callable[[], float] = environment.unix_time,
        start: Callable[[Callable[[], None]], None] = environment.start_thread,
    ) -> None:
        self._make_source = make_source
        self._clock = clock
        self._wall = wall
        self._start = start
        self._token: Token | None = None
        self._refused: Token | None = None
        self._source: Callable[[], Any] | None = None
        self._reset()

    def current(self, patience: float) -> Token:
        """Return a usable token, or raise TokenUnavailable after so many seconds."""
        self._renew_where_due()
        token = self._usable()
        if token is None and self._request.acquire(True, patience):
            self._request.release()
            token = self._usable()
        if token is None:
            reason = self._reason or f"Entra ID gave no token within {patience:g} s"
            raise TokenUnavailable(f"{NO_TOKEN}: {reason}")
        return token

    def is_retired(self, token: Token) -> bool:
        """Return whether connections made with this token are used no more; renew it in time."""
        self._renew_where_due()
        return not self._is_alive(token) or token is self._refused

    def refused(self, token: Token) -> bool:
        """Note that the server refused it, and return whether another token may help.

        The same text again does not help, nor another token in place of a new one.
        """
        if token.is_same(self._refused) or self._clock() - token.came_at < _FRESH_SECONDS:
            return False
        self._refused = token
        self._source = None  # a new credential has no cache that could hold the token
        self._not_before = 0.0
        return True

    def _reset(self) -> None:
        # At first, and in a child process, which has not inherited its parent's threads.
        self._pid = os.getpid()
        self._request = environment.lock()  # held while the credential is asked
        self._source = None
        self._not_before = 0.0
        self._reason: str | None = None

    def _is_alive(self, token: Token, seconds: float = RETIRE_SECONDS) -> bool:
        return token.ends_at - self._clock() > seconds

    def _usable(self) -> Token | None:
        token = self._token
        return token if token is not None and token is not self._refused and self._is_alive(token) else None

    def _renew_where_due(self) -> None:
        if os.getpid() != self._pid:
            self._reset()
        token = self._usable()
        if token is not None and self._is_alive(token, RENEW_SECONDS):
            return
        if self._clock() < self._not_before or not self._request.acquire(False):
            return
        try:
            if self._source is None:
                self._source = self._make_source()
            self._not_before = self._clock() + RETRY_SECONDS
            self._start(partial(self._ask, self._source, self._request))
        except BaseException:
            self._request.release()
            raise

    def _ask(self, source: Callable[[], Any], request: Any) -> None:
        try:
            self._token, self._reason = self._received(*source()[:2]), None
        except Exception as error:
            self._reason = reason = _reason_of(error)
            retry = f"{reason} (asked again in {RETRY_SECONDS:g} s)"
            events.step_failed(step="get a token of Entra ID", error=retry)
        finally:
            request.release()

    def _received(self, text: str, expires_on: float) -> Token:
        now = self._clock()
        return Token(text, now, now + expires_on - self._wall())


def _reason_of(error: Exception) -> str:
    reason = _LIKE_A_TOKEN.sub("***", " ".join(f"{type(error).__name__}: {error}".split()))
    return reason if len(reason) <= _LONGEST_REASON else reason[: _LONGEST_REASON - 3] + "..."


# Whom a token is for, by the end of the server's name; Microsoft Learn, "Azure SQL endpoints" of
# the sovereign clouds.
_AUDIENCES = {
    ".usgovcloudapi.net": "https://database.usgovcloudapi.net/.default",
    ".chinacloudapi.cn": "https://database.chinacloudapi.cn/.default",
}
_AUDIENCE = "https://database.windows.net/.default"
_OWN_LOGIN = {"uid", "user", "pwd", "password", "authentication", "dsn", "filedsn"}


class Identity(NamedTuple):
    """Who logs in, and to whom the token is shown."""

    kind: str  # "default", "managed", "workload" or "cli"
    client_id: str | None
    tenant_id: str | None
    scope: str


def identity_of(url: DatabaseUrl) -> Identity | None:
    """Return who logs in; None where the address, or its data source, has a login of its own."""
    options = {key.lower(): value for key, value in url.options.items()}
    given = {pair.key: pair.value for pair in odbc_pairs(url.odbc or "") or ()} | options
    trusted = given.get("trusted_connection", "no").lower() != "no"
    if url.user or url.password or trusted or _OWN_LOGIN & given.keys():
        return None
    host = (url.host or "").partition(",")[0].lower()
    scope = next((scope for end, scope in _AUDIENCES.items() if host.endswith(end)), _AUDIENCE)
    return Identity(options.get("identity", "default"), options.get("client_id"), options.get("tenant_id"), scope)


@lru_cache(maxsize=16)  # one token for all stores of a process that log in alike
def tokens_for(identity: Identity) -> Tokens:
    """Return the tokens of an identity, or raise DriverMissing without azure-identity."""
    try:
        is_installed = importlib.util.find_spec("azure.identity") is not None
    except ModuleNotFoundError:
        is_installed = False
    if not is_installed:
        raise DriverMissing(
            "the address names no user, so Entra ID is asked for a token, and azure-identity is not installed: "
            'run pip install "celery-sqlbeat[mssql]"'
        )
    return Tokens(lambda: token_source(identity))


def token_source(identity: Identity) -> Callable[[], Any]:
    """Make the credential of an identity, and return how to ask it for a token."""
    credential = _credential(identity, importlib.import_module("azure.identity"))
    return lambda: credential.get_token(identity.scope)


def _credential(identity: Identity, azure: Any) -> Any:
    client, tenant = identity.client_id, identity.tenant_id
    try:
        if identity.kind == "managed":
            return azure.ManagedIdentityCredential(client_id=client)
        if identity.kind == "workload":
            named = {"client_id": client, "tenant_id": tenant}
            return azure.WorkloadIdentityCredential(**{key: value for key, value in named.items() if value})
        if identity.kind == "cli":
            return azure.AzureCliCredential(tenant_id=tenant or "")
        named = {"managed_identity_client_id": client, "workload_identity_client_id": client}
        return azure.DefaultAzureCredential(**{key: value for key, value in named.items() if value})
    except ValueError as error:  # what Kubernetes should have put into the environment is missing
        raise StoreError(f"the {identity.kind} identity cannot be used: {error}") from error
