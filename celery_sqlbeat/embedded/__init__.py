"""A broker without a server, for one machine: messages are files of a folder. Importing this makes `folder://` known.

It needs POSIX file locks. What it promises: no message is lost or taken twice while processes are killed. Not promised:
that the last messages outlive a power failure, as nothing waits for the disk.
"""

from pathlib import Path
from urllib.parse import quote

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES["folder"] = "celery_sqlbeat.embedded.transport:Transport"


def folder_url(folder: str | Path) -> str:
    """Return the broker URL of a folder; it is made when it is first used."""
    return f"folder://localhost/{quote(str(Path(folder).absolute()))}"  # kombu warns where no host is named


__all__ = ["folder_url"]
