"""Keys in Azure Key Vault, as far as that can be tried without one.

No Azure answers here. What answers is a small HTTP server of this test, which is told what a vault
would say, and a credential of this test in place of azure-identity's. So these tests hold what is
sent and what is made of an answer, and not that Azure is content with it.
"""

import json
import threading
from collections.abc import Iterator
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from azure import identity
from cryptography.fernet import Fernet

from celery_sqlbeat.config.payload_key import Keyring
from celery_sqlbeat.errors import PayloadKeyError

OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))
ADDRESS = "https://shop.vault.azure.net/secrets/payload-key"
TOKEN = "token-of-this-test"


class FakeVault:
    """A local HTTP server that answers what a test tells it to; no vault."""

    def __init__(self) -> None:
        self.answer: tuple[int, Any] = (200, {"value": f"{NEW}\n{OLD}"})
        self.headers: dict[str, str] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.hosts: list[str] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                fake.asked.append((self.path, self.headers.get("Authorization")))
                status, body = fake.answer
                self.send_response(status)
                for name, value in fake.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def connect(self, host: str, timeout: float) -> HTTPConnection:
        self.hosts.append(host)
        return HTTPConnection("127.0.0.1", self.server.server_port, timeout=timeout)


@pytest.fixture
def vault() -> Iterator[FakeVault]:
    made = FakeVault()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def scopes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let a credential of this test give the token; return whom each was asked for."""
    asked: list[str] = []

    def get_token(scope: str) -> SimpleNamespace:
        asked.append(scope)
        return SimpleNamespace(token=TOKEN)

    monkeypatch.setattr(identity, "DefaultAzureCredential", lambda: SimpleNamespace(get_token=get_token))
    return asked


def test_the_secret_is_asked_for_once_with_a_token_for_vaults(vault: FakeVault, scopes: list[str]) -> None:
    keys = Keyring([ADDRESS], vault.connect)
    assert vault.asked == []
    sealed = Keyring([OLD]).sealed("[1]")
    assert (keys.opened(sealed), keys.opened(sealed)) == ("[1]", "[1]")
    assert Keyring([NEW]).opened(keys.sealed("[2]")) == "[2]"
    assert vault.asked == [("/secrets/payload-key?api-version=7.4", f"Bearer {TOKEN}")]
    assert (vault.hosts, scopes) == (["shop.vault.azure.net"], ["https://vault.azure.net/.default"])


def test_a_vault_of_a_sovereign_cloud_has_an_audience_of_its_own(vault: FakeVault, scopes: list[str]) -> None:
    version = "0123456789abcdef0123456789abcdef"
    Keyring([f"https://shop.vault.usgovcloudapi.net/secrets/key/{version}"], vault.connect).load()
    assert scopes == ["https://vault.usgovcloudapi.net/.default"]
    assert vault.asked[0][0] == f"/secrets/key/{version}?api-version=7.4"


@pytest.mark.usefixtures("scopes")
@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (403, {"error": {"message": NEW}}, "the vault answers 403 Forbidden: give this identity the right"),
        (404, {}, "the vault answers 404 Not Found"),
        (200, b"<html>", "holds no secret"),
        (200, ["value"], "holds no secret"),
        (200, {"value": f"{NEW[:-3]}"}, "no Fernet key"),
        (200, {"value": ""}, "no Fernet key"),
    ],
)
def test_another_answer_is_one_line_without_a_secret(vault: FakeVault, status: int, body: Any, says: str) -> None:
    vault.answer = (status, body)
    with pytest.raises(PayloadKeyError, match=says) as caught:
        Keyring([ADDRESS], vault.connect).load()
    text = str(caught.value)
    assert text.startswith(f"sqlbeat_payload_key = {ADDRESS}: ") and "\n" not in text
    assert NEW[:-3] not in text and TOKEN not in text


@pytest.mark.usefixtures("scopes")
def test_a_redirect_gets_no_token(vault: FakeVault) -> None:
    vault.answer, vault.headers = (302, {}), {"Location": f"http://127.0.0.1:{vault.server.server_port}/elsewhere"}
    with pytest.raises(PayloadKeyError, match="the vault answers 302"):
        Keyring([ADDRESS], vault.connect).load()
    assert len(vault.asked) == 1


@pytest.mark.usefixtures("scopes")
def test_a_vault_that_is_away_is_asked_again_when_the_key_is_needed_again(vault: FakeVault) -> None:
    def refuse(host: str, timeout: float) -> HTTPConnection:
        return HTTPConnection("127.0.0.1", 1, timeout=timeout) if not vault.hosts else vault.connect(host, timeout)

    keys = Keyring([ADDRESS], refuse)
    with pytest.raises(PayloadKeyError, match=r"the vault does not answer \(ConnectionRefusedError\)"):
        keys.load()
    vault.hosts.append("back")
    keys.load()


def test_no_identity_is_one_line(monkeypatch: pytest.MonkeyPatch, vault: FakeVault) -> None:
    def get_token(scope: str) -> None:
        raise ValueError(f"a dozen lines\nof reasons, with {TOKEN}")

    monkeypatch.setattr(identity, "DefaultAzureCredential", lambda: SimpleNamespace(get_token=get_token))
    with pytest.raises(PayloadKeyError, match=r"Entra ID gives no token \(ValueError\): log in \(az login\)") as caught:
        Keyring([ADDRESS], vault.connect).load()
    assert TOKEN not in str(caught.value) and vault.asked == []
