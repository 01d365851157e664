"""What a module of the standard library had before gevent or eventlet patched it."""

import importlib
import sys
from typing import Any


def original(module: str, name: str) -> Any:
    """What this module has under this name where nobody patches anything."""
    if "gevent.monkey" in sys.modules:
        from gevent.monkey import get_original

        return get_original(module, name)
    if "eventlet.patcher" in sys.modules:
        from eventlet.patcher import original as unpatched

        return getattr(unpatched(module), name)
    return getattr(importlib.import_module(module), name)
