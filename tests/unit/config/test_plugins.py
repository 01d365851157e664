"""What others add has a name; a row names only what is known; what cannot be loaded says why."""

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from celery_sqlbeat.config import plugins
from celery_sqlbeat.config.plugins import CLAIM_ORDERS, RETRY_STRATEGIES, SCHEDULES, CannotLoad, Plugins
from celery_sqlbeat.config.policy import fields_from_text
from celery_sqlbeat.config.settings import read_settings, require_functions
from celery_sqlbeat.errors import FieldError, SettingError
from celery_sqlbeat.schedule import text

PATH = "tests.support.plugged"


def made(**others: str) -> Plugins:
    """Return a registry with one name of ours."""
    return Plugins("tests.nobody_has_this", "kind of test", {"ours": "celery_sqlbeat.model.retries:fixed", **others})


@pytest.mark.parametrize("registry", [RETRY_STRATEGIES, CLAIM_ORDERS, SCHEDULES], ids=lambda each: each.what)
def test_what_this_package_names_can_be_loaded(registry: Plugins) -> None:
    ours = [name for name, path in registry._paths.items() if path.startswith("celery_sqlbeat.")]
    assert ours and all(callable(registry.load(name)) for name in ours)


def test_each_kind_of_schedule_of_this_package_is_one_that_nobody_else_may_name() -> None:
    assert set(text._READERS) == {name for name in SCHEDULES.names() if "celery_sqlbeat." in SCHEDULES._paths[name]}
    with pytest.raises(SettingError, match=r"'cron' is celery_sqlbeat.schedule.text:read_cron already"):
        read_settings({"sqlbeat_schedules": {"cron": f"{PATH}.minutes"}}, {})


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("no_such_module.at_all", "ModuleNotFoundError: No module named 'no_such_module'"),
        (f"{PATH}.missing", "AttributeError"),
        (f"{PATH}.NOT_CALLABLE", "is no function, but int"),
    ],
)
def test_what_cannot_be_loaded_says_why_and_stops_a_start(path: str, reason: str) -> None:
    registry = made(other=path)
    with pytest.raises(CannotLoad, match=reason):
        registry.load("other")
    with pytest.raises(SettingError, match=f"sqlbeat_x = 'other': .*{reason}"):
        registry.require("other", "sqlbeat_x")


def test_an_entry_point_is_known_by_its_name_and_takes_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        EntryPoint("ours", f"{PATH}:patient", "tests.group"),
        EntryPoint("theirs", f"{PATH}:patient", "tests.group"),
        EntryPoint("gone", "no_such_module:patient", "tests.group"),
    ]
    monkeypatch.setattr(plugins, "entry_points", lambda group: points if group == "tests.group" else [])
    registry = Plugins("tests.group", "kind of test", {"ours": "celery_sqlbeat.model.retries:fixed"})
    assert registry.names() == ["ours", "gone", "theirs"] and registry.knows("theirs")
    assert registry.load("theirs").__name__ == "patient" and registry.load("ours").__name__ == "fixed"
    with pytest.raises(CannotLoad, match="no_such_module:patient cannot be loaded"):
        registry.load("gone")


def test_an_installed_package_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "shop_waits-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-waits\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[celery_sqlbeat.retry_strategies]\nof_the_shop = {PATH}:patient\n")
    monkeypatch.syspath_prepend(tmp_path)
    registry = Plugins(RETRY_STRATEGIES.group, "kind of test", {})
    assert "of_the_shop" in registry.names() and registry.load("of_the_shop").__name__ == "patient"


def test_one_name_stands_for_one_function_in_a_process() -> None:
    registry = made()
    registry.add("other", "a.b")
    registry.add("other", "a.b")
    with pytest.raises(Exception, match=r"'other' is a\.b already"):
        registry.add("other", "a.c")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sqlbeat_retry_strategy", "nosuch"),
        ("sqlbeat_retry_strategy", None),
        ("sqlbeat_retry_strategy", 7),
        ("sqlbeat_retry_strategy", "a..b"),
        ("sqlbeat_retry_strategy", "a.b()"),
        ("sqlbeat_retry_strategy", "a." + "b" * 300),
        ("sqlbeat_claim_order", "newest"),
        ("sqlbeat_schedules", ["fiscal"]),
        ("sqlbeat_schedules", {"Fiscal": "a.b"}),
        ("sqlbeat_schedules", {"two words": "a.b"}),
        ("sqlbeat_schedules", {"fiscal": "fiscal"}),
        ("sqlbeat_schedules", {"fiscal": 7}),
        ("sqlbeat_schedules", {7: "a.b"}),
        ("sqlbeat_policies", {"*": {"retry_strategy": "nosuch"}}),
        ("sqlbeat_policies", {"*": {"retry_on": "ValueError"}}),
        ("sqlbeat_policies", {"*": {"retry_on": []}}),
        ("sqlbeat_policies", {"*": {"dead_on": ["Value Error"]}}),
        ("sqlbeat_policies", {"*": {"dead_on": ["x"] * 51}}),
    ],
)
def test_a_setting_that_names_nothing_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingError, match=name):
        read_settings({name: value}, {})


def test_a_row_names_what_the_settings_name_and_no_other_path() -> None:
    policy = f'{{"retry_strategy": "{PATH}.hopeless"}}'
    with pytest.raises(FieldError, match="retry strategy that this process knows"):
        fields_from_text(policy)
    settings = read_settings({"sqlbeat_policies": {"nightly": {"retry_strategy": f"{PATH}.hopeless"}}}, {})
    assert fields_from_text(policy) == {"retry_strategy": f"{PATH}.hopeless"}
    require_functions(settings, RETRY_STRATEGIES)


def test_a_start_requires_what_it_uses_and_nothing_else() -> None:
    settings = read_settings({"sqlbeat_policies": {"*": {"retry_strategy": "tests.no_such.module"}}}, {})
    require_functions(settings, SCHEDULES, CLAIM_ORDERS)
    with pytest.raises(SettingError, match=r"sqlbeat_policies\['\*'\]\['retry_strategy'\] = 'tests.no_such.module'"):
        require_functions(settings, RETRY_STRATEGIES)
