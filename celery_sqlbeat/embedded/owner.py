"""Who holds messages: a process, known to live by the lock on a file that the kernel lets go of when it dies.

The lock is POSIX's (lockf), which a forked child does not inherit: the child of a killed worker keeps nothing alive.
Such a lock is gone as soon as its process closes any descriptor of the file, so nobody opens the lock of its own.
"""

import fcntl
import os
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_OWNERS = "owners"
_LOCK = "lock"

_mine: dict[tuple[int, Path], Path] = {}
_looking = threading.Lock()  # POSIX's locks do not keep the threads of one process apart


def own_folder(root: Path) -> Path:
    """Return the folder of this process; it belongs to it until it ends."""
    key = (os.getpid(), root)
    found = _mine.get(key)
    if found is None:
        found = _mine.setdefault(key, _make(root))  # two threads at once: the folder of one stays empty
    elif not found.is_dir():  # somebody removed the whole broker
        found = _mine[key] = _make(root)
    return found


def _make(root: Path) -> Path:
    folder = root / _OWNERS / f"{os.getpid()}-{secrets.token_hex(8)}"
    folder.mkdir(parents=True)
    # Whoever sees the lock by its name must find it held.
    descriptor = os.open(folder / "unlocked", os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.lockf(descriptor, fcntl.LOCK_EX)
    (folder / "unlocked").rename(folder / _LOCK)
    return folder


def dead_folders(root: Path) -> Iterator[Path]:
    """Yield the folders of processes that have ended, each while no other process can get it; then remove it."""
    if not _looking.acquire(blocking=False):
        return
    try:
        for folder in _folders(root):
            if not folder.name.startswith(f"{os.getpid()}-"):
                with _locked_if_dead(folder) as is_dead:
                    if is_dead:
                        yield folder
                        shutil.rmtree(folder)
    finally:
        _looking.release()


def _folders(root: Path) -> list[Path]:
    try:
        return sorted((root / _OWNERS).iterdir())
    except FileNotFoundError:
        return []


@contextmanager
def _locked_if_dead(folder: Path) -> Iterator[bool]:
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR)
    except (FileNotFoundError, PermissionError):  # just being made or removed, or another user's
        yield False
        return
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            yield False
        else:
            # Another process may have cleared it away between the two calls.
            yield (folder / _LOCK).exists()
    finally:
        os.close(descriptor)


@contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Keep every other process and thread out of the same few lines."""
    descriptor = os.open(root / "exclusive", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # not left to close: a child forked meanwhile has a copy
    finally:
        os.close(descriptor)
