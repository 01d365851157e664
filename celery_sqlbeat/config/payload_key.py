"""The keys that encrypt arguments at rest: `sqlbeat_payload_key`.

They are read when they are first needed, and stand in no repr, error or log.
"""

import base64
import importlib
import json
import re
from collections.abc import Callable, Sequence
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from celery_sqlbeat.config import validation
from celery_sqlbeat.config.redaction import HIDDEN
from celery_sqlbeat.errors import PayloadKeyError, SettingError

SETTING = "sqlbeat_payload_key"
SEALED = "fernet:"  # begins a sealed text; no JSON begins so
FILE = "file:"
_ALLOWED = (
    "must be a Fernet key (44 characters), file:/path of a file of keys, or "
    "https://VAULT.vault.azure.net/secrets/NAME; or a list of these, the newest first"
)
# The token is sent there, so it must be a vault of Azure: the public cloud's, or a sovereign one's.
_VAULT = re.compile(
    r"https://(?P<host>[A-Za-z0-9-]{3,24}\.(?P<cloud>vault\.(?:azure\.net|azure\.cn|usgovcloudapi\.net)))"
    r"(?P<path>/secrets/[A-Za-z0-9-]{1,127}(?:/[0-9a-f]{32})?)/?"
)
_VAULT_SECONDS = 10.0
_SEPARATORS = re.compile(r"[\s,]+")

Connect = Callable[..., Any]


def is_sealed(text: object) -> bool:
    """Return whether a column holds a sealed text."""
    return isinstance(text, str) and text.startswith(SEALED)


class Keyring:
    """The keys of a process, the newest first: it seals with the first, and opens with each."""

    def __init__(self, sources: Sequence[str], connect: Connect = HTTPSConnection) -> None:
        """Read nothing yet. `connect` makes the connection to a vault."""
        self._sources = tuple(sources)
        self._connect = connect
        self._fernets: list[Any] = []

    def load(self) -> None:
        """Read the keys where that is not done; PayloadKeyError says why they cannot be had."""
        self._keys()

    def sealed(self, text: str | None) -> str | None:
        """Return a text as it is kept; one that is sealed already, and None, as they are."""
        if text is None or is_sealed(text):
            return text
        return SEALED + str(self._keys()[0].encrypt(text.encode()).decode())

    def opened(self, text: Any) -> Any:
        """Return the text below the seal; what is not sealed, or by no key of these, as it is."""
        if not is_sealed(text):
            return text
        read = self._opened(text)
        return text if read is None else read[0]

    def resealed(self, text: Any) -> Any:
        """Return a text under the newest key; one that is so already, or cannot be, as it is."""
        if not isinstance(text, str):
            return text
        read = self._opened(text) if is_sealed(text) else (text, -1)
        return text if read is None or read[1] == 0 else self.sealed(read[0])

    def __repr__(self) -> str:
        return "<payload keys>"

    def _opened(self, text: str) -> tuple[str, int] | None:
        """Return what a sealed text says, and the number of its key; None where no key opens it."""
        for number, fernet in enumerate(self._keys()):
            try:
                return fernet.decrypt(text[len(SEALED) :].encode()).decode(), number
            except (_invalid_token(), UnicodeError):
                continue
        return None

    def _keys(self) -> list[Any]:
        if not self._fernets:
            make = _fernet().Fernet
            self._fernets = [make(key) for source in self._sources for key in self._read(source)]
        return self._fernets

    def _read(self, source: str) -> list[str]:
        """Return the keys of one source; of a key itself that one."""
        if is_key(source):
            return [source]
        vault = _VAULT.fullmatch(source)
        text = _from_file(source) if vault is None else _from_vault(source, vault, self._connect)
        keys = [key for key in _SEPARATORS.split(text) if key]
        if not keys or not all(map(is_key, keys)):
            raise PayloadKeyError(source, "what stands there is no Fernet key, nor several with blanks between them")
        return keys


def payload_key() -> validation.Kind:
    """Return the kind of the setting; in a variable sources are parted by commas."""
    return validation.optional(
        validation.Kind(_ALLOWED.removeprefix("must be "), _keyring, lambda text: text.split(",")),
        "arguments are kept as they are",
    )


def is_key(text: str) -> bool:
    """Return whether this is a key: 32 bytes in the base64 of URLs."""
    try:
        return len(text) == 44 and len(base64.b64decode(text, b"-_", validate=True)) == 32
    except ValueError:
        return False


def _keyring(value: object) -> Keyring:
    # The error of another setting shows its value.
    sources = [value] if isinstance(value, str) else value
    if not isinstance(sources, (list, tuple)) or not sources:
        raise SettingError(SETTING, HIDDEN, _ALLOWED)
    clean = [source.strip() if isinstance(source, str) else "" for source in sources]
    if not all(is_key(s) or _VAULT.fullmatch(s) or (s.startswith(FILE) and len(s) > len(FILE)) for s in clean):
        raise SettingError(SETTING, HIDDEN, _ALLOWED)
    return Keyring(clean)


def _fernet() -> Any:
    try:
        return importlib.import_module("cryptography.fernet")
    except ImportError:
        raise PayloadKeyError(
            HIDDEN, 'cryptography is not installed: run pip install "celery-sqlbeat[crypto]"'
        ) from None


def _invalid_token() -> type[Exception]:
    kind: type[Exception] = _fernet().InvalidToken
    return kind


def _from_file(source: str) -> str:
    path = source.removeprefix(FILE)
    try:
        return Path(path.removeprefix("//") if path.startswith("///") else path).read_text("ascii")
    except OSError as error:
        raise PayloadKeyError(source, f"the file cannot be read: {error.strerror}") from None
    except UnicodeError:
        raise PayloadKeyError(source, "the file holds no Fernet key") from None


def _from_vault(source: str, vault: re.Match[str], connect: Connect) -> str:
    """Ask Azure Key Vault, as who `azure-identity` finds this process to be."""
    try:
        azure = importlib.import_module("azure.identity")
    except ImportError:
        raise PayloadKeyError(source, 'azure-identity is not installed: run pip install "azure-identity"') from None
    try:
        token = azure.DefaultAzureCredential().get_token(f"https://{vault['cloud']}/.default").token
    except Exception as error:  # each credential of the chain has errors of its own
        reason = (
            f"Entra ID gives no token ({type(error).__name__}): log in (az login), or give this process an identity"
        )
        raise PayloadKeyError(source, reason) from None
    connection = connect(vault["host"], timeout=_VAULT_SECONDS)  # which follows no redirect with the token
    try:
        connection.request("GET", f"{vault['path']}?api-version=7.4", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, HTTPException) as error:
        raise PayloadKeyError(source, f"the vault does not answer ({type(error).__name__})") from None
    finally:
        connection.close()
    if answer.status != 200:
        reason = f"the vault answers {answer.status} {answer.reason}: give this identity the right to get the secret"
        raise PayloadKeyError(source, reason)
    try:
        return str(json.loads(body)["value"])
    except (ValueError, LookupError, TypeError):
        raise PayloadKeyError(source, "the vault's answer holds no secret") from None
