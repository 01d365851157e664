"""Names that other packages and the settings may add to: by entry point, or by dotted path.

A row of the database only ever names what is known here: who may write rows may import nothing.
"""

import pkgutil
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from celery_sqlbeat.config.validation import Kind, NotAllowed, from_json
from celery_sqlbeat.errors import SettingError

_is_name = re.compile(r"[a-z][a-z0-9_-]{0,99}", re.ASCII).fullmatch
_is_path = re.compile(r"[^\W\d]\w*([.:][^\W\d]\w*)+").fullmatch
_LONGEST_PATH = 300  # characters


class CannotLoad(Exception):  # not an error of its own: the caller raises one that names the place
    """A name is not known here, or what it stands for cannot be imported."""


class Plugins:
    """The functions of one purpose by name, each imported when it is first used."""

    def __init__(self, group: str, what: str, ours: Mapping[str, str]) -> None:
        """`ours`: the paths of those that this package has; no other one takes their names."""
        self.group, self.what = group, what
        self._paths = dict(ours)
        self._loaded: dict[str, Callable[..., Any]] = {}

    def knows(self, name: str) -> bool:
        """Return whether it is ours, an entry point, or named by the settings of this process."""
        return name in self._paths or name in self._entry_points

    def names(self) -> list[str]:
        """Return all known names, ours first."""
        return [*self._paths, *sorted(self._entry_points.keys() - self._paths.keys())]

    def add(self, name: str, path: str) -> None:
        """Add what the settings name; raises NotAllowed where it has this name already."""
        if self._paths.setdefault(name, path) != path:
            raise NotAllowed(f"another name: {name!r} is {self._paths[name]} already in this process")

    def load(self, name: str) -> Callable[..., Any]:
        """Return the function of this name, or raise CannotLoad."""
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def require(self, name: str, setting: str) -> None:
        """Load what a setting names, or raise a SettingError with the reason."""
        try:
            self.load(name)
        except CannotLoad as error:
            raise SettingError(setting, name, str(error)) from error

    def _load(self, name: str) -> Callable[..., Any]:
        if not self.knows(name):
            raise CannotLoad(f"no such {self.what} here; there are {', '.join(self.names())}")
        path = self._paths.get(name) or self._entry_points[name].value
        try:
            function = pkgutil.resolve_name(path) if name in self._paths else self._entry_points[name].load()
        except Exception as error:  # whatever its module raises
            text = " ".join(str(error).split())
            raise CannotLoad(f"the {self.what} {path} cannot be loaded ({type(error).__name__}: {text})") from error
        if not callable(function):
            raise CannotLoad(f"the {self.what} {path} is no function, but {type(function).__name__}")
        return function  # type: ignore[no-any-return]  # whatever its module has by this name

    @cached_property
    def _entry_points(self) -> Mapping[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}


def known(plugins: Plugins) -> Kind:
    """Read a name that is known in this process."""

    def check(value: object) -> str:
        if not isinstance(value, str) or not plugins.knows(value):
            raise ValueError
        return value

    return Kind(f"the name of a {plugins.what} that this process knows ({_ours(plugins)}, or one added)", check)


def known_or_path(plugins: Plugins) -> Kind:
    """Read a name, or the dotted path of a function, which is known by its path from then on."""
    plain = known(plugins)

    def check(value: object) -> object:
        add_path(plugins, value)
        return plain.check(value)

    return Kind(f"{_ours(plugins)}, the name of an entry point, or a dotted path such as 'shop.waits.patient'", check)


def add_path(plugins: Plugins, value: object) -> None:
    """Add a dotted path by its own name; anything else is left to the check of names."""
    if isinstance(value, str) and len(value) <= _LONGEST_PATH and _is_path(value):
        plugins.add(value, value)


def named_paths(plugins: Plugins) -> Kind:
    """Read a mapping from names to dotted paths, and add them."""
    allowed = "a mapping from names (a-z, 0-9, _ and -) to dotted paths, such as {'fiscal': 'shop.fiscal.read'}"

    def check(value: object) -> tuple[tuple[str, str], ...]:
        if not isinstance(value, Mapping):
            raise ValueError
        for name, path in value.items():
            if not (isinstance(name, str) and _is_name(name) and isinstance(path, str) and _is_path(path)):
                raise ValueError
        for name, path in value.items():
            plugins.add(name, path)
        return tuple(value.items())

    return Kind(allowed, check, from_json)


def _ours(plugins: Plugins) -> str:
    return ", ".join(repr(name) for name, path in plugins._paths.items() if path.startswith("celery_sqlbeat."))


_WAITS, _ORDERS, _TEXT = (
    "celery_sqlbeat.model.retries",
    "celery_sqlbeat.model.claim_orders",
    "celery_sqlbeat.schedule.text",
)

RETRY_STRATEGIES = Plugins(
    "celery_sqlbeat.retry_strategies",
    "retry strategy",
    {name: f"{_WAITS}:{name}" for name in ("exponential", "fixed", "linear", "decorrelated", "none")},
)
CLAIM_ORDERS = Plugins(
    "celery_sqlbeat.claim_orders",
    "claim order",
    {name: f"{_ORDERS}:{name}" for name in ("oldest", "priority", "fair")},
)
SCHEDULES = Plugins(
    "celery_sqlbeat.schedules",
    "schedule kind",
    {name: f"{_TEXT}:read_{name}" for name in ("every", "cron", "solar", "once")},
)
