"""pyodbc, loaded where it is needed, with the one command that helps where it is not there. Connects nowhere.

Its wheels for Linux stand on unixODBC, the driver manager, which no wheel brings.
"""

import importlib
import platform
from collections.abc import Callable
from typing import Any

from celery_sqlbeat.errors import DriverMissing

# The types of ODBC by the numbers of its standard: to describe a statement needs no driver.
SQL_BIT = -7
SQL_BIGINT = -5
SQL_GUID = -11
SQL_INTEGER = 4
SQL_DOUBLE = 8
SQL_VARCHAR = 12
SQL_WCHAR = -8
SQL_WVARCHAR = -9
SQL_WLONGVARCHAR = -10

# By the ID or ID_LIKE of os-release: the driver manager, and Kerberos' library, which Microsoft's driver loads.
_COMMANDS = {
    "alpine": "apk add unixodbc krb5-libs",
    "debian": "apt-get install unixodbc libgssapi-krb5-2",
    "rhel": "dnf install unixODBC krb5-libs",
    "fedora": "dnf install unixODBC krb5-libs",
    "centos": "dnf install unixODBC krb5-libs",
    "suse": "zypper install unixODBC krb5",
    "opensuse": "zypper install unixODBC krb5",
    "arch": "pacman -S unixodbc krb5",
}


def load_pyodbc(import_module: Callable[[str], Any] = importlib.import_module) -> Any:
    """The module pyodbc, or a DriverMissing that names the command that helps."""
    try:
        pyodbc = import_module("pyodbc")
    except ModuleNotFoundError as error:
        raise DriverMissing('pyodbc is not installed: run pip install "celery-sqlbeat[mssql]"') from error
    except ImportError as error:
        raise DriverMissing(f"pyodbc cannot be loaded ({error}): run {system_command()}") from error
    # The driver manager would hand out connections that a child process inherited, or whose access token has ended.
    pyodbc.pooling = False
    return pyodbc


def system_command(system: str | None = None, names: tuple[str, ...] | None = None) -> str:
    """The command that installs what pyodbc and Microsoft's driver need of the operating system."""
    system = system or platform.system()
    if system == "Darwin":
        return "brew install unixodbc"
    if system == "Windows":
        return "winget install Microsoft.VCRedist.2015+.x64"
    return next((_COMMANDS[name] for name in names or release_names() if name in _COMMANDS), _COMMANDS["debian"])


def release_names() -> tuple[str, ...]:
    """What this Linux calls itself, the narrowest name first."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ()
    return (release.get("ID", ""), *release.get("ID_LIKE", "").split())
