"""Keep the files of a folder broker and their owners: an owner lives while its lock is held."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from celery_sqlbeat import environment

MESSAGE = ".json"  # how the names of messages end

_mine: dict[tuple[int, Path], Path] = {}


@contextlib.contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Exclude all other processes and threads."""
    root.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(root / "exclusive", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # not left to close: a child forked meanwhile has a copy
    finally:
        os.close(descriptor)


def own_folder(root: Path) -> Path:
    """Return the folder of this process; the kernel drops the lock in it when the process ends.

    The lock is POSIX's (lockf): no forked child inherits it, so that of a killed worker keeps
    nothing alive. Closing any descriptor of the file drops it, so no process opens its own again.
    """
    key = os.getpid(), root
    folder = _mine.get(key)
    if folder is None or not folder.is_dir():  # not made yet, or removed with the whole broker
        with exclusive(root):  # no other process may see it before it is locked
            folder = _mine.get(key)
            if folder is None or not folder.is_dir():
                folder = root / "owners" / f"{os.getpid()}-{environment.random_hex(8)}"
                folder.mkdir(parents=True)
                fcntl.lockf(os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o600), fcntl.LOCK_EX)
                _mine[key] = folder
    return folder


@contextlib.contextmanager
def dead_owners(root: Path) -> Iterator[list[Path]]:
    """Yield the folders of ended processes, under the lock of all; remove them afterwards."""
    own = own_folder(root)
    with exclusive(root):
        dead = [folder for folder in sorted((root / "owners").iterdir()) if folder != own and _is_dead(folder)]
        yield dead
        for folder in dead:
            shutil.rmtree(folder)


def _is_dead(owner: Path) -> bool:
    """Return whether the process of this folder has ended; never asked about one's own."""
    try:
        descriptor = os.open(owner / "lock", os.O_RDWR)
    except FileNotFoundError:  # it was killed while it made its folder
        return True
    except PermissionError:  # another user's process
        return False
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    finally:
        os.close(descriptor)
    return True


def messages(folder: Path) -> list[str]:
    """Return the names of the messages in a folder."""
    try:
        return [name for name in os.listdir(folder) if name.endswith(MESSAGE) and not name.startswith(".")]
    except FileNotFoundError:
        return []


def move(source: Path, target: Path) -> None:
    """Rename a file, and make the folder of its target where that is missing."""
    try:
        source.rename(target)
    except FileNotFoundError:  # the queue is not there yet, or any more
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)


def file_name(name: str) -> str:
    """Return a file name that is no path and not hidden, and that no other queue has."""
    quoted = quote(name, safe="@") or "%"
    return f"%2E{quoted[1:]}" if quoted.startswith(".") else quoted
