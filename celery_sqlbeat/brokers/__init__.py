"""Make `folder://` known to kombu: a broker without a server."""

from pathlib import Path
from urllib.parse import quote

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES["folder"] = "celery_sqlbeat.brokers.folder:Transport"


def folder_url(folder: str | Path) -> str:
    """Return the broker URL of a folder; the folder is made at its first use."""
    return f"folder://localhost/{quote(str(Path(folder).absolute()))}"  # kombu warns where no host is named


__all__ = ["folder_url"]
