"""A JSON schema of docker-compose.yml.

Of the Compose specification what is used there, and nothing else.

Narrow on purpose, like kubernetes_schema.py: a field that is mistyped or stands in the wrong place
is unknown.
"""

from tests.infra.kubernetes_schema import COUNT, NAME, SECONDS, WORDS, Schema, fields

DURATION: Schema = {"type": "string", "pattern": r"^\d+(ms|s|m)$"}
ENVIRONMENT: Schema = {
    "type": "object",
    "propertyNames": {"pattern": "^[A-Z][A-Z0-9_]*$"},
    "additionalProperties": {"type": "string"},  # a bare number or yes would reach the container in another form
}
DEPENDENCIES: Schema = {
    "type": "object",
    "additionalProperties": fields({"condition": {"enum": ["service_healthy", "service_completed_successfully"]}}),
}
SERVICE = fields(
    {"image": {"type": "string", "pattern": r"^[a-z0-9./-]+(:[\w.-]+)?$", "not": {"pattern": ":latest$"}}},
    build=fields({"context": {"const": "."}, "target": NAME}),
    command=WORDS,
    depends_on=DEPENDENCIES,
    deploy=fields({"replicas": SECONDS}),
    entrypoint=WORDS,
    environment=ENVIRONMENT,
    healthcheck=fields(
        {
            "test": {**WORDS, "prefixItems": [{"const": "CMD"}]},
            "interval": DURATION,
            "timeout": DURATION,
            "retries": COUNT,
        },
        start_period=DURATION,
    ),
    hostname=NAME,
    ports={"type": "array", "items": {"type": "string", "pattern": r"^127\.0\.0\.1:\d+:\d+$"}},
    profiles=WORDS,
    restart={"const": "unless-stopped"},
    stop_grace_period=DURATION,
    volumes={"type": "array", "items": {"type": "string", "pattern": r"^(\./[\w/.-]+:/[\w/]+:ro|[a-z]+:/[\w/]+)$"}},
)
COMPOSE: Schema = {
    "type": "object",
    "properties": {
        "name": NAME,
        "services": {"type": "object", "additionalProperties": SERVICE},
        "volumes": {"type": "object", "additionalProperties": {"type": "null"}},
    },
    "patternProperties": {"^x-": {}},
    "required": ["name", "services"],
    "additionalProperties": False,
}
