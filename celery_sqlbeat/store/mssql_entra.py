"""How SQL Server is logged in to without a password: an access token of Entra ID for the identity of an address.

azure-identity is imported when the first token is asked for. No token has a repr that tells it.
"""

import importlib
import importlib.util
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from celery_sqlbeat.errors import DriverMissing, StoreError
from celery_sqlbeat.masking import odbc_pairs
from celery_sqlbeat.store.tokens import Token, Tokens
from celery_sqlbeat.url import DatabaseUrl

ACCESS_TOKEN = 1256  # SQL_COPT_SS_ACCESS_TOKEN of Microsoft's driver: an attribute set before it connects

# Whom a token is for, by the end of the server's name; Microsoft Learn, "Azure SQL endpoints" of the sovereign clouds.
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
    """Who logs in; None where the address brings a login of its own. A data source is for whoever wrote it to say."""
    options = {key.lower(): value for key, value in url.options.items()}
    given = {pair.key: pair.value for pair in odbc_pairs(url.odbc or "") or ()} | options
    trusted = given.get("trusted_connection", "no").lower() != "no"
    if url.user or url.password or trusted or _OWN_LOGIN & given.keys():
        return None
    host = (url.host or "").partition(",")[0].lower()
    scope = next((scope for end, scope in _AUDIENCES.items() if host.endswith(end)), _AUDIENCE)
    return Identity(options.get("identity", "default"), options.get("client_id"), options.get("tenant_id"), scope)


@lru_cache(maxsize=16)  # one credential and one token for all stores of a process that log in alike
def tokens_for(identity: Identity) -> Tokens:
    """The tokens of an identity, or a DriverMissing: said at the start, not when a connection is needed."""
    try:
        found = importlib.util.find_spec("azure.identity")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise DriverMissing(
            "the address names no user, so Entra ID is asked for a token, and azure-identity is not installed: "
            'run pip install "celery-sqlbeat[mssql]"'
        )
    return Tokens(lambda: _asking(identity))


def _asking(identity: Identity) -> Callable[[], Any]:
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
    except ValueError as error:  # what Kubernetes should have put into the environment is not there
        raise StoreError(f"the {identity.kind} identity cannot be used: {error}") from error


def attributes(token: Token | None) -> dict[int, bytes]:
    """What the driver is given before it connects: the length of the token in bytes, and its text in UTF-16."""
    return {} if token is None else {ACCESS_TOKEN: token.told(_struct)}


def _struct(text: str) -> bytes:
    return struct.pack(f"<I{2 * len(text)}s", 2 * len(text), text.encode("utf-16-le"))
