"""The CI workflow, .ci/run and README.md name commands that exist."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def workflow() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
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


@pytest.mark.parametrize("path", [".ci/run", "README.md", "docs/generate.py", "tests/unit/test_docs.py"])
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
