"""The keys that encrypt arguments: where they come from, what they open, and who sees them."""

import base64
import sys
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from celery_sqlbeat.config.payload_key import Keyring, is_key, is_sealed
from celery_sqlbeat.config.settings import Settings, read_settings
from celery_sqlbeat.errors import PayloadKeyError, SettingError

# The names of tests hold them, so each process that runs a part of the tests must have the same.
OLD, NEW = (base64.urlsafe_b64encode(bytes(range(first, first + 32))).decode() for first in (0, 32))
VAULT = "https://shop.vault.azure.net/secrets/payload-key"


def keyring(value: object) -> Keyring:
    keys = read_settings({"sqlbeat_payload_key": value}, {}).payload_key
    assert keys is not None
    return keys


def test_arguments_are_kept_as_they_are_where_there_is_no_key() -> None:
    assert read_settings({}, {}).payload_key is None


def test_what_is_sealed_is_opened_again_and_says_nothing_of_itself() -> None:
    sealed = keyring(NEW).sealed('["ü 4711"]')
    assert sealed is not None and sealed.startswith("fernet:") and "4711" not in sealed
    assert keyring(NEW).opened(sealed) == '["ü 4711"]'


@pytest.mark.parametrize("kept", [None, '["plain"]', "", b"bytes", 5])
def test_what_nobody_sealed_is_as_it_was(kept: object) -> None:
    assert keyring(NEW).opened(kept) == kept


def test_nothing_is_sealed_twice() -> None:
    keys = keyring(NEW)
    sealed = keys.sealed("[1]")
    assert keys.sealed(sealed) == sealed and keys.sealed(None) is None


def test_the_newest_key_seals_and_each_opens() -> None:
    before, both, after = keyring(OLD), keyring([NEW, OLD]), keyring(NEW)
    assert both.opened(before.sealed("[1]")) == "[1]"
    assert after.opened(both.sealed("[1]")) == "[1]"


def test_what_no_key_opens_stays_sealed() -> None:
    sealed = str(keyring(OLD).sealed("[1]"))
    assert keyring(NEW).opened(sealed) == sealed
    for broken in ("fernet:", "fernet:x", "fernet:ü", f"{sealed[:20]}x{sealed[20:]}", sealed[:-4]):
        assert is_sealed(keyring(OLD).opened(broken))


def test_a_rotation_writes_what_is_plain_or_under_an_older_key_and_nothing_else() -> None:
    both = keyring([NEW, OLD])
    for text in ("[1]", keyring(OLD).sealed("[1]")):
        assert keyring(NEW).opened(both.resealed(text)) == "[1]"
    others: list[object] = [keyring(NEW).sealed("[1]"), keyring(Fernet.generate_key().decode()).sealed("[1]"), None, 5]
    for kept in others:
        assert both.resealed(kept) == kept


def test_the_environment_parts_keys_by_commas() -> None:
    keys = read_settings({}, {"SQLBEAT_PAYLOAD_KEY": f"{NEW}, {OLD}"}).payload_key
    assert keys is not None and keys.opened(keyring(OLD).sealed("[1]")) == "[1]"
    assert keyring(NEW).opened(keys.sealed("[1]")) == "[1]"


@pytest.mark.parametrize("form", ["file:{}", "file://{}"])
def test_a_file_holds_keys_the_newest_first(tmp_path: Path, form: str) -> None:
    (tmp_path / "keys").write_text(f"{NEW}\n{OLD}\n")
    keys = keyring(form.format(tmp_path / "keys"))
    assert keys.opened(keyring(OLD).sealed("[1]")) == "[1]"
    assert keyring(NEW).opened(keys.sealed("[1]")) == "[1]"


def test_a_file_is_read_when_it_is_first_needed_and_then_never_again(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    keys = keyring(f"file:{path}")
    with pytest.raises(PayloadKeyError, match=f"file:{path}: the file cannot be read: No such file"):
        keys.load()
    path.write_text(NEW)
    keys.load()
    path.unlink()
    assert keys.opened(keys.sealed("[1]")) == "[1]"


def secrets_in(text: str) -> list[str]:
    return [key for key in (OLD, NEW, OLD[:-2], NEW[3:]) if key in text]


@pytest.mark.parametrize("content", [f"{NEW}x", f"key={NEW}", "", "ü", f"{NEW}\n{OLD[:-2]}"])
def test_a_file_without_a_key_is_told_of_without_what_stands_in_it(tmp_path: Path, content: str) -> None:
    (tmp_path / "keys").write_text(content)
    with pytest.raises(PayloadKeyError, match="Fernet key") as caught:
        keyring(f"file:{tmp_path / 'keys'}").load()
    assert not secrets_in(str(caught.value) + repr(caught.value.__cause__))


@pytest.mark.parametrize(
    "value",
    [
        f"{NEW}x",
        NEW[3:],
        [NEW, OLD[:-2]],
        [],
        "",
        5,
        {"key": NEW},
        [NEW, 5],
        "file:",
        f"https://{NEW}",
        "https://shop.vault.azure.net.example.org/secrets/key",
        "https://user@shop.vault.azure.net/secrets/key",
        "https://shop.vault.azure.net/keys/key",
        "http://shop.vault.azure.net/secrets/key",
        "https://shop.vault.azure.net/secrets/../keys/key",
        "https://shop.vault.azure.net/secrets/key?x=1",
    ],
)
def test_what_is_no_key_is_refused_without_being_shown(value: object) -> None:
    with pytest.raises(SettingError, match=r"sqlbeat_payload_key = '\*\*\*': must be a Fernet key") as caught:
        read_settings({"sqlbeat_payload_key": value}, {})
    assert not secrets_in(str(caught.value)) and caught.value.value == "***"


def test_a_key_under_a_mistyped_name_is_not_shown() -> None:
    for name in ("sqlbeat_payload_keys", "SQLBEAT_PAYLOAD_KEY", "sqlbeat_secret"):
        with pytest.raises(SettingError) as caught:
            read_settings({name: NEW}, {})
        assert not secrets_in(str(caught.value) + repr(caught.value.value)), name


def test_no_repr_shows_a_key() -> None:
    settings = read_settings({"sqlbeat_payload_key": [NEW, OLD]}, {})
    assert not secrets_in(repr(settings) + repr(settings.payload_key) + str(settings))
    assert isinstance(settings, Settings)


def test_without_cryptography_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    with pytest.raises(
        PayloadKeyError, match=r"\*\*\*: cryptography is not installed: .*celery-sqlbeat\[crypto\]"
    ) as caught:
        keyring(NEW).load()
    assert not secrets_in(str(caught.value))


@pytest.mark.parametrize("address", [VAULT, f"{VAULT}/0123456789abcdef0123456789abcdef", f"{VAULT}/"])
def test_a_vault_is_named_and_not_asked_before_it_is_needed(address: str) -> None:
    keyring(address)


def test_a_vault_without_azure_identity_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(PayloadKeyError, match="azure-identity is not installed"):
        keyring(VAULT).load()


@pytest.mark.parametrize(("text", "is_one"), [(NEW, True), (NEW[:-1], False), ("ü" * 44, False), ("!" * 44, False)])
def test_a_key_is_32_bytes_in_base64(text: str, is_one: bool) -> None:
    assert is_key(text) is is_one
