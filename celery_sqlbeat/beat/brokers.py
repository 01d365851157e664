"""The connection to the broker: opened late, in this process only, found to be alive before anything relies on it."""

import contextlib
import os
import sys
import time
from typing import Any

import amqp

from celery_sqlbeat import masking
from celery_sqlbeat.beat.amqp_outlet import AmqpOutlet
from celery_sqlbeat.beat.outlets import Outlet, one_line
from celery_sqlbeat.beat.redis_outlet import RedisOutlet
from celery_sqlbeat.errors import BrokerAway

_TRUSTED_SECONDS = 1.0  # a connection that answered so lately is not asked again
_LONGEST_PROBE = 2.0  # seconds; an answer takes a millisecond, and the rest of the time is for a new connection


class Broker:
    """At most one connection, and the outlet over it."""

    def __init__(self, app: Any, patience: float) -> None:
        self._app, self._patience = app, patience
        self._outlet: Outlet | None = None
        self._pid = os.getpid()
        self._answered = 0.0

    @property
    def outlet(self) -> Outlet | None:
        """What messages go through, if there is a connection that this process opened and that is not broken."""
        if self._outlet is not None and self._pid != os.getpid():
            self._outlet.forget()
            self._outlet = None
        if self._outlet is not None and self._outlet.broken:
            self.close()
        return self._outlet

    @property
    def was_refused(self) -> bool:
        """Whether the broker has just broken off the connection's channel because of what was published."""
        return self._outlet is not None and self._outlet.refused

    def connect(self, seconds: float) -> None:
        """Be connected within so many seconds, or raise BrokerAway."""
        end = time.monotonic() + seconds
        outlet = self.outlet
        if outlet is not None and not self._answers(outlet, min(seconds / 2, _LONGEST_PROBE)):
            self.close()
        if self._outlet is None:
            self._open(max(end - time.monotonic(), seconds / 4))
            self.answered()

    def answered(self) -> None:
        """The broker answered just now."""
        self._answered = time.monotonic()

    def _answers(self, outlet: Outlet, seconds: float) -> bool:
        if time.monotonic() - self._answered < _TRUSTED_SECONDS:
            return True
        try:
            outlet.probe(seconds)
        except Exception as error:
            outlet.broken = one_line(error)
            return False
        self.answered()
        return True

    def _open(self, seconds: float) -> None:
        connection = None
        try:
            connection = self._connection(seconds)
            # Each of the hosts that the URL names is tried once.
            connection.ensure_connection(
                max_retries=max(len(connection.alt) - 1, 0), interval_start=0, interval_step=0, timeout=seconds
            )
            self._outlet, self._pid = self._outlet_over(connection, seconds), os.getpid()
        except Exception as error:
            if connection is not None:
                connection.collect()
            raise unreachable(self._app, one_line(error)) from error

    def _connection(self, seconds: float) -> Any:
        options = self._app.conf.broker_transport_options or {}
        connection = self._app.connection_for_write(heartbeat=0)  # probed instead, so that an idle beat need not wake
        share = seconds / max(len(connection.alt), 1)
        connection.connect_timeout = min(connection.connect_timeout or share, share)
        if connection.get_transport_cls().driver_type == "redis":
            connect = min(options.get("socket_connect_timeout") or share, share)
            answer = min(options.get("socket_timeout") or self._patience, self._patience, share)
            connection.transport_options = {
                **connection.transport_options,
                "socket_connect_timeout": connect,
                "socket_timeout": answer,
                "retry_on_timeout": False,  # what was pushed, but not answered in time, would be pushed again
            }
        return connection

    def _outlet_over(self, connection: Any, seconds: float) -> Outlet:
        app, link = self._app, connection.connection
        if isinstance(link, amqp.Connection) and _confirms(link):
            return AmqpOutlet(app, connection, seconds)
        producer = app.amqp.Producer(connection, auto_declare=False)
        if _is_plain_redis(producer.channel):
            return RedisOutlet(connection, producer)
        return Outlet(connection, producer)

    def close(self) -> None:
        """Close the connection, if there is one; no error is worth reporting then."""
        outlet, self._outlet = self._outlet, None
        if outlet is not None:
            with contextlib.suppress(Exception):  # the connection is gone either way
                outlet.forget() if self._pid != os.getpid() else outlet.close()


def unreachable(app: Any, text: str) -> BrokerAway:
    """The error that says so of the app's broker, with what its client said; without the secrets of its URLs."""
    urls = app.conf.broker_write_url or app.conf.broker_url or ""
    urls = urls.split(";") if isinstance(urls, str) else list(urls)
    for url in urls:
        text = masking.mask_text(text, url)
    return BrokerAway(f"the broker {' or '.join(map(masking.masked, urls))} cannot be reached: {text}")


def _confirms(link: amqp.Connection) -> bool:
    capabilities = link.server_properties.get("capabilities") or {}
    return bool(capabilities.get("publisher_confirms"))


def _is_plain_redis(channel: Any) -> bool:
    """Whether putting into a queue is one command on one server; a cluster's pipeline is another thing."""
    module = sys.modules.get("kombu.transport.redis")
    return module is not None and getattr(type(channel), "_put", None) is module.Channel._put
