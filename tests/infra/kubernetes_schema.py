"""JSON schemas of the kinds of infra/kubernetes, with the fields that are used there and no others.

Narrow on purpose: a field that is mistyped or stands in the wrong place is unknown, and Kubernetes
itself would drop it without a word.
"""

from typing import Any

Schema = dict[str, Any]

NAME: Schema = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$"}
TEXTS: Schema = {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1}
COUNT: Schema = {"type": "integer", "minimum": 0}
SECONDS: Schema = {"type": "integer", "minimum": 1}
WORDS: Schema = {"type": "array", "items": {"type": "string"}, "minItems": 1}


def fields(required: Schema, **optional: Schema) -> Schema:
    """Return an object with these fields only."""
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def several(items: Schema) -> Schema:
    """Return a list that is not empty."""
    return {"type": "array", "items": items, "minItems": 1}


def manifest(version: str, kind: str, **rest: Schema) -> Schema:
    """Return a whole manifest."""
    return fields({"apiVersion": {"const": version}, "kind": {"const": kind}, "metadata": METADATA, **rest})


METADATA = fields({"name": NAME}, namespace=NAME, labels=TEXTS, annotations=TEXTS)
SELECTOR = fields({"matchLabels": TEXTS})
PROBE = fields(
    {
        "exec": fields({"command": WORDS}),
        "periodSeconds": SECONDS,
        "timeoutSeconds": SECONDS,
        "failureThreshold": SECONDS,
    }
)
QUANTITIES: Schema = {
    "type": "object",
    "propertyNames": {"enum": ["cpu", "memory"]},
    "additionalProperties": {"type": "string", "pattern": r"^[0-9]+(m|Ki|Mi|Gi)?$"},
}
CONTAINER = fields(
    {
        "name": NAME,
        "image": {"type": "string", "pattern": r"^[^:]+:[^:]+$", "not": {"pattern": ":latest$"}},
        "command": WORDS,
        "envFrom": several(fields({"configMapRef": fields({"name": NAME})})),
        "env": several(
            fields(
                {
                    "name": {"type": "string", "pattern": "^[A-Z_]+$"},
                    "valueFrom": fields({"secretKeyRef": fields({"name": NAME, "key": {"type": "string"}})}),
                }
            )
        ),
        "startupProbe": PROBE,
        "livenessProbe": PROBE,
        "readinessProbe": PROBE,
        "resources": fields({"requests": QUANTITIES, "limits": QUANTITIES}),
        "securityContext": fields(
            {
                "allowPrivilegeEscalation": {"const": False},
                "readOnlyRootFilesystem": {"const": True},
                "capabilities": fields({"drop": {"const": ["ALL"]}}),
            }
        ),
        "volumeMounts": several(fields({"name": NAME, "mountPath": {"type": "string", "pattern": "^/"}})),
    }
)
POD = fields(
    {
        "serviceAccountName": NAME,
        "terminationGracePeriodSeconds": SECONDS,
        "topologySpreadConstraints": several(
            fields(
                {
                    "maxSkew": SECONDS,
                    "topologyKey": {"type": "string"},
                    "whenUnsatisfiable": {"enum": ["DoNotSchedule", "ScheduleAnyway"]},
                    "labelSelector": SELECTOR,
                }
            )
        ),
        "securityContext": fields(
            {
                "runAsNonRoot": {"const": True},
                "runAsUser": SECONDS,
                "runAsGroup": SECONDS,
                "fsGroup": SECONDS,
                "seccompProfile": fields({"type": {"const": "RuntimeDefault"}}),
            }
        ),
        "containers": several(CONTAINER),
        "volumes": several(fields({"name": NAME, "emptyDir": {"type": "object", "maxProperties": 0}})),
    }
)
DEPLOYMENT = fields(
    {
        "replicas": SECONDS,
        "selector": SELECTOR,
        "template": fields({"metadata": fields({"labels": TEXTS}), "spec": POD}),
    },
    strategy=fields(
        {"type": {"const": "RollingUpdate"}, "rollingUpdate": fields({"maxUnavailable": COUNT, "maxSurge": COUNT})}
    ),
)
KINDS = {
    "Namespace": manifest("v1", "Namespace"),
    "ServiceAccount": manifest("v1", "ServiceAccount"),
    "ConfigMap": manifest("v1", "ConfigMap", data=TEXTS),
    "Deployment": manifest("apps/v1", "Deployment", spec=DEPLOYMENT),
    "PodDisruptionBudget": manifest(
        "policy/v1", "PodDisruptionBudget", spec=fields({"minAvailable": SECONDS, "selector": SELECTOR})
    ),
}
