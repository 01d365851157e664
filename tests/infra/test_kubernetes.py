"""The manifests of infra/kubernetes: of known shape, and fitting together."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from celery_sqlbeat.config.database_url import database_url
from celery_sqlbeat.config.settings import NAMES
from tests.infra.kubernetes_schema import KINDS

FOLDER = Path(__file__).parents[2] / "infra/kubernetes"
FILES = sorted(path for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml")


def manifests() -> Iterator[dict[str, Any]]:
    for path in FILES:
        yield from yaml.safe_load_all(path.read_text())


ALL = list(manifests())
DEPLOYMENTS = {one["metadata"]["name"]: one for one in ALL if one["kind"] == "Deployment"}
CONTAINERS = {
    name: container for name, one in DEPLOYMENTS.items() for container in one["spec"]["template"]["spec"]["containers"]
}
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def by_kind(kind: str) -> list[dict[str, Any]]:
    return [one for one in ALL if one["kind"] == kind]


@pytest.mark.parametrize("manifest", ALL, ids=lambda one: f"{one['kind']} {one['metadata']['name']}")
def test_a_manifest_has_the_shape_of_its_kind(manifest: dict[str, Any]) -> None:
    jsonschema.validate(manifest, KINDS[manifest["kind"]])
    if manifest["kind"] != "Namespace":
        assert manifest["metadata"]["namespace"] == by_kind("Namespace")[0]["metadata"]["name"]


def test_a_field_in_the_wrong_place_is_refused() -> None:
    wrong: dict[str, Any] = {**DEPLOYMENTS["beat"], "replicas": 2}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, KINDS["Deployment"])


def test_all_files_are_applied_together() -> None:
    listed = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == [path.name for path in FILES]


def test_two_beats_run_and_one_of_them_always_does() -> None:
    assert DEPLOYMENTS["beat"]["spec"]["replicas"] == 2
    [budget] = by_kind("PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == 1
    assert budget["spec"]["selector"] == DEPLOYMENTS["beat"]["spec"]["selector"]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_deployment_finds_its_pods_and_its_identity(name: str) -> None:
    spec = DEPLOYMENTS[name]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert labels["azure.workload.identity/use"] == "true"
    accounts = {one["metadata"]["name"]: one["metadata"] for one in by_kind("ServiceAccount")}
    account = accounts[spec["template"]["spec"]["serviceAccountName"]]
    assert "azure.workload.identity/client-id" in account["annotations"]


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_container_leaves_no_pid_file_and_is_probed_on_health(name: str) -> None:
    container = CONTAINERS[name]
    assert "--pidfile=" in container["command"]
    health = ["celery", "-A", "app", "sqlbeat", "health"]
    assert container["command"][:3] == health[:3]
    assert container["readinessProbe"]["exec"]["command"] == [*health, "--here"]
    assert container["startupProbe"]["exec"]["command"] == [*health, "--here"]
    assert container["livenessProbe"]["exec"]["command"] == [*health, "--liveness"]
    for probe in PROBES:
        assert container[probe]["timeoutSeconds"] >= 10, "a probe starts Python and imports the app"


def test_the_options_of_the_probes_exist() -> None:
    from celery_sqlbeat.cli.status import health

    known = {option for parameter in health.params for option in parameter.opts}
    used = {word for one in CONTAINERS.values() for probe in PROBES for word in one[probe]["exec"]["command"]}
    assert {word for word in used if word.startswith("--")} == {"--here", "--liveness"} <= known


def test_beats_and_workers_read_the_same_settings() -> None:
    beat, worker = CONTAINERS["beat"], CONTAINERS["worker"]
    assert beat["command"][3:6] == ["beat", "--scheduler", "celery_sqlbeat.Scheduler"]
    assert worker["command"][3] == "worker"
    assert (beat["image"], beat["envFrom"], beat["env"]) == (worker["image"], worker["envFrom"], worker["env"])
    [settings] = by_kind("ConfigMap")
    assert beat["envFrom"] == [{"configMapRef": {"name": settings["metadata"]["name"]}}]
    assert all(name.lower() in NAMES for name in settings["data"])


def test_the_database_is_reached_without_a_password() -> None:
    [settings] = by_kind("ConfigMap")
    url = database_url(settings["data"]["SQLBEAT_DATABASE_URL"])
    assert url.database == "mssql" and url.options == {"identity": "workload"}
    assert url.user is None and url.password is None
    assert by_kind("Secret") == []
