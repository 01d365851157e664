"""pyodbc is loaded late, and its absence is told with the one command that helps."""

import re
import subprocess
import sys
from typing import Any

import pytest

from celery_sqlbeat.errors import DriverMissing
from celery_sqlbeat.store import odbc
from celery_sqlbeat.store.odbc import load_pyodbc, system_command
from tests.servers import server
from tests.unit.store.fake_odbc import FakePyodbc


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


def test_a_store_whose_driver_is_missing_says_so_before_it_connects() -> None:
    code = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name == "pyodbc":
            raise ImportError("libodbc.so.2: cannot open shared object file: No such file or directory")
sys.meta_path.insert(0, Gone())
from celery_sqlbeat.config import read_settings
from celery_sqlbeat.errors import DriverMissing
from celery_sqlbeat.store import open_store
try:
    open_store(read_settings({"sqlbeat_database_url": "mssql://db/shop"}, {}))
except DriverMissing as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "libodbc.so.2" in done.stdout and system_command() in done.stdout, done.stdout + done.stderr


def test_the_numbers_and_the_errors_are_those_of_the_real_pyodbc() -> None:
    server("odbc")
    pyodbc = load_pyodbc()
    assert pyodbc.pooling is False
    for name in [name for name in vars(odbc) if name.startswith("SQL_")]:
        assert getattr(odbc, name) == getattr(pyodbc, name), name
    assert pyodbc.BinaryNull is not None
    errors = ("Error", "InterfaceError", "DatabaseError", "OperationalError", "ProgrammingError")
    for name in errors:
        real, fake = getattr(pyodbc, name), getattr(FakePyodbc, name)
        assert [kind.__name__ for kind in real.__mro__] == [kind.__name__ for kind in fake.__mro__]
    with pytest.raises(pyodbc.Error) as caught:
        pyodbc.connect("Driver=/nowhere", autocommit=True, timeout=1, attrs_before={1256: b"\0\0\0\0"})
    state, text = caught.value.args
    assert re.fullmatch(rf"\[{state}\] .* \(\d+\) \(SQLDriverConnect\)", text)
