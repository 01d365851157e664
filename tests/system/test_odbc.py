"""What pyodbc says where it is, and what a store says where it cannot be loaded."""

import re
import subprocess
import sys

import pytest

from celery_sqlbeat.store.sql.dialects import mssql_driver
from celery_sqlbeat.store.sql.dialects.mssql_driver import load_pyodbc, system_command
from tests.servers import server
from tests.support.fake_odbc import FakePyodbc


def test_a_store_whose_driver_is_missing_says_so_before_it_connects() -> None:
    code = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name == "pyodbc":
            raise ImportError("libodbc.so.2: cannot open shared object file: No such file or directory")
sys.meta_path.insert(0, Gone())
from celery_sqlbeat.config.settings import read_settings
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
    for name in [name for name in vars(mssql_driver) if name.startswith("SQL_")]:
        assert getattr(mssql_driver, name) == getattr(pyodbc, name), name
    assert pyodbc.BinaryNull is not None
    errors = ("Error", "InterfaceError", "DatabaseError", "OperationalError", "ProgrammingError")
    for name in errors:
        real, fake = getattr(pyodbc, name), getattr(FakePyodbc, name)
        assert [kind.__name__ for kind in real.__mro__] == [kind.__name__ for kind in fake.__mro__]
    with pytest.raises(pyodbc.Error) as caught:
        pyodbc.connect("Driver=/nowhere", autocommit=True, timeout=1, attrs_before={1256: b"\0\0\0\0"})
    state, text = caught.value.args
    assert re.fullmatch(rf"\[{state}\] .* \(\d+\) \(SQLDriverConnect\)", text)
