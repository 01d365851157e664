"""A broker's fingerprint names it without credentials.

Only what can never be the same broker counts as another.
"""

from typing import Any

import kombu.connection
import pytest

from celery_sqlbeat.celery_bridge.app import LONGEST, differ_for_certain, fingerprint

Connection: Any = kombu.connection.Connection  # kombu leaves it without types


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("amqp://", "amqp//localhost:5672//"),
        ("pyamqp://user:hidden@rabbit", "amqp//rabbit:5672//"),
        ("amqps://user:hidden@rabbit:5671/shop", "amqp//rabbit:5671/shop"),
        ("amqp://user:hidden@rabbit//", "amqp//rabbit:5672//"),
        ("amqp://b/x;amqp://user:hidden@a/x", "amqp//a:5672,b:5672/x"),
        ("redis://:hidden@db.example/3", "redis//db.example:6379/3"),
        ("rediss://db.example:6380?ssl_cert_reqs=none", "redis//db.example:6380/0"),
        ("redis+socket:///run/redis.sock", "redis//socket/0"),
        ("sentinel://a;sentinel://b:2", "sentinel//a:26379,b:2/0"),
    ],
)
def test_a_fingerprint_names_kind_hosts_and_space_and_no_credentials(url: str, expected: str) -> None:
    assert fingerprint(Connection(url)) == expected


def test_the_key_prefix_and_the_folder_of_a_broker_without_a_server_count() -> None:
    prefixed = Connection("redis://h", transport_options={"global_keyprefix": "shop:"})
    assert fingerprint(prefixed) == "redis//h:6379/0#shop:"
    in_folder = Connection("filesystem://", transport_options={"data_folder_out": "out"})
    assert fingerprint(in_folder) == "filesystem//out/"


def test_a_long_list_of_hosts_fits_the_column() -> None:
    urls = ";".join(f"amqp://rabbit-{number}.messaging.svc.example/{'v' * 150}" for number in range(9))
    other = ";".join(f"amqp://rabbit-{number}.messaging.svc.example/{'w' * 150}" for number in range(9))
    long, longer = fingerprint(Connection(urls)), fingerprint(Connection(other))
    assert len(long) <= LONGEST and len(longer) <= LONGEST
    assert differ_for_certain(long, longer)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("redis//a:6379/0", "amqp//a:5672//", True),
        ("redis//a:6379/0", "redis//a:6379/1", True),
        ("redis//a:6379/0", "redis//a:6379/0#shop:", True),
        ("amqp//a:5672//", "amqp//a:5672/shop", True),
        ("amqp//a:5672/shop", "amqp//b:5672/shop", False),  # two nodes of a cluster, or two names of one
        ("redis//localhost:6379/0", "redis//127.0.0.1:6379/0", False),
        ("redis//a:6379/0", "redis//a:6379/0", False),
    ],
)
def test_only_another_kind_or_another_space_is_certainly_another_broker(one: str, other: str, expected: bool) -> None:
    assert differ_for_certain(one, other) is expected
    assert differ_for_certain(other, one) is expected
