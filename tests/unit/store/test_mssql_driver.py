"""pyodbc is loaded late, and its absence is told with the one command that helps."""

import re
from typing import Any

import pytest

from celery_sqlbeat.errors import DriverMissing
from celery_sqlbeat.store.sql.dialects.mssql_driver import load_pyodbc, system_command
from tests.support.fake_odbc import FakePyodbc


def importing(answer: Any) -> Any:
    def import_module(name: str) -> Any:
        assert name == "pyodbc"
        if isinstance(answer, Exception):
            raise answer
        return answer

    return import_module


def test_the_driver_manager_keeps_no_connections() -> None:
    fake = FakePyodbc()
    assert load_pyodbc(importing(fake)) is fake
    assert fake.pooling is False


def test_a_missing_pyodbc_names_the_extra() -> None:
    absent = ModuleNotFoundError("No module named 'pyodbc'", name="pyodbc")
    with pytest.raises(DriverMissing, match=re.escape('pip install "celery-sqlbeat[mssql]"')):
        load_pyodbc(importing(absent))


def test_a_missing_unixodbc_names_the_command_of_the_platform() -> None:
    absent = ImportError("libodbc.so.2: cannot open shared object file: No such file or directory")
    with pytest.raises(DriverMissing, match=r"libodbc\.so\.2.*: run ") as caught:
        load_pyodbc(importing(absent))
    assert str(caught.value).endswith(system_command())


@pytest.mark.parametrize(
    ("system", "names", "command"),
    [
        ("Linux", ("debian",), "apt-get install unixodbc libgssapi-krb5-2"),
        ("Linux", ("ubuntu", "debian"), "apt-get install unixodbc libgssapi-krb5-2"),
        ("Linux", ("rocky", "rhel", "centos", "fedora"), "dnf install unixODBC krb5-libs"),
        ("Linux", ("alpine",), "apk add unixodbc krb5-libs"),
        ("Linux", ("opensuse-leap", "suse", "opensuse"), "zypper install unixODBC krb5"),
        ("Linux", ("of-somebody",), "apt-get install unixodbc libgssapi-krb5-2"),
        ("Darwin", (), "brew install unixodbc"),
    ],
)
def test_each_platform_has_its_command(system: str, names: tuple[str, ...], command: str) -> None:
    assert system_command(system, names) == command
