"""The CI workflow, .ci/run and README.md name commands that exist."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import celery_sqlbeat

ROOT = Path(__file__).parents[2]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def locked() -> dict[str, str]:
    """Return the versions for development, by the names of their packages."""
    text = (ROOT / "constraints-dev.txt").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==([^\s;]+)", text, re.MULTILINE))


def workflow(name: str = "ci") -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text())
    return loaded


def test_ci_runs_what_a_developer_runs() -> None:
    job = workflow()["jobs"]["test"]
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]
    assert os.access(ROOT / ".ci/run", os.X_OK)


def test_ci_requires_only_servers_that_it_starts() -> None:
    job = workflow()["jobs"]["test"]
    names = {"postgres": "postgresql"}
    started = {names.get(service, service) for service in job["services"]}
    required = set(job["env"]["SQLBEAT_REQUIRE"].split(","))
    assert required - {"odbc", "pgbouncer"} <= started
    assert {"odbc", "pgbouncer"} <= required  # installed by .ci/run itself


def test_ci_runs_every_python_that_the_package_names() -> None:
    pythons = workflow()["jobs"]["test"]["strategy"]["matrix"]["python"]
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())
    assert pythons == named


@pytest.mark.parametrize(
    "path", [".ci/run", "README.md", "CONTRIBUTING.md", "docs/generate.py", "tests/unit/test_docs.py"]
)
def test_every_make_target_that_is_named_exists(path: str) -> None:
    named = re.findall(r"\bmake ([a-z]+)", (ROOT / path).read_text())
    assert named
    assert set(named) <= targets()


def test_ci_tests_what_is_made_for_azure_and_for_containers() -> None:
    steps = [step["run"] for step in workflow()["jobs"]["infra"]["steps"] if "run" in step]
    for path in ("infra/tests", "infra/kubernetes/kustomization.yaml", "docker-compose.yml"):
        assert (ROOT / path).exists()
    assert steps == [
        "Invoke-Pester -Path infra/tests -CI",
        "make .env && docker compose --profile test config --quiet",
        "docker build --target app .",
        "kubectl kustomize infra/kubernetes",
    ]


def test_every_make_target_has_its_line_in_the_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert set(re.findall(r"^([a-z]+):[^#\n]*## \w.+$", makefile, re.MULTILINE)) == targets()
    assert ".DEFAULT_GOAL := help\n" in makefile
    (phony,) = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert set(phony.split()) == targets()


def test_the_lock_holds_what_development_asks_for_and_names_no_host() -> None:
    text = (ROOT / "constraints-dev.txt").read_text()
    assert "://" not in text and "--" not in text and " @ " not in text
    groups = (ROOT / "pyproject.toml").read_text().partition("[dependency-groups]")[2].partition("\n[")[0]
    asked = set(re.findall(r'^  "([A-Za-z0-9-]+)', groups, re.MULTILINE)) | {"celery", "kombu", "redis", "psycopg"}
    assert {name.lower() for name in asked} <= locked().keys(), "run make lock"


def test_the_image_is_built_from_extras_and_groups_that_exist() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    dockerfile = (ROOT / "Dockerfile").read_text()
    named = [extra for found in re.findall(r"'\.\[([\w,-]+)\]'", dockerfile) for extra in found.split(",")]
    assert {"mssql", "redis"} <= set(named)
    extras = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    groups = project.partition("[dependency-groups]")[2].partition("\n[")[0]
    assert [name for name in named if f"\n{name} = [" not in extras] == []
    assert [name for name in re.findall(r"--group (\S+)", dockerfile) if f"\n{name} = [" not in groups] == []


def test_the_hooks_before_a_commit_have_the_locked_versions() -> None:
    loaded = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = {hook["id"]: hook for repo in loaded["repos"] for hook in repo["hooks"]}
    assert hooks.keys() == {"ruff", "ruff-format", "mypy"}
    for name in ("ruff", "ruff-format"):
        assert hooks[name]["additional_dependencies"] == [f"ruff=={locked()['ruff']}"], "run make lock, then edit it"
    assert hooks["mypy"]["entry"] == ".venv/bin/mypy"  # which the lock holds


def test_a_release_publishes_the_files_that_were_tested_without_a_stored_secret() -> None:
    jobs = workflow("release")["jobs"]
    tested = [step for step in jobs["build"]["steps"] if "tests/packaging" in step.get("run", "")]
    assert [step["env"] for step in tested] == [{"SQLBEAT_TEST_DIST": "dist"}]
    publish = jobs["publish"]
    assert publish["needs"] == "build" and publish["permissions"]["id-token"] == "write"
    assert [step["uses"].partition("@")[0] for step in publish["steps"]] == [
        "actions/download-artifact",
        "actions/attest-build-provenance",
        "pypa/gh-action-pypi-publish",
    ]
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text()


def test_the_changelog_has_room_for_the_next_version_above_the_present_one() -> None:
    titles = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert titles[:2] == ["Unreleased", celery_sqlbeat.__version__]
