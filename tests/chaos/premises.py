"""A folder for everything that a storm makes for itself.

What a killed storm left behind is removed by the next one.
"""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "sqlbeat_storm_"


@contextlib.contextmanager
def premises() -> Iterator[Path]:
    """Servers, databases and the small disk are made in here.

    Their processes die with the storm, however it ends.
    """
    remove_deserted()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}_"))
    folder.chmod(0o711)  # PostgreSQL runs as a user of its own
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield folder
    finally:
        tempfile.tempdir = before
        _remove(folder)


def remove_deserted() -> None:
    """Remove the folders of storms that are no more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        number = folder.name.removeprefix(_PREFIX).partition("_")[0]
        if number.isdecimal() and not Path(f"/proc/{number}").exists():
            _remove(folder)


def _remove(folder: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in mounts:
        if mount.startswith(f"{folder}/"):
            subprocess.run(["umount", "-l", mount], check=False)
    shutil.rmtree(folder, ignore_errors=True)
