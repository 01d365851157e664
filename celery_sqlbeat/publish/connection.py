"""Connect to the broker late, in this process only, and probe an idle connection before use."""

import contextlib
import os
import sys
from typing import Any

import amqp

from celery_sqlbeat import environment
from celery_sqlbeat.celery_bridge.symbols import BATCHES, CONFIRMING, is_on
from celery_sqlbeat.config import redaction
from celery_sqlbeat.errors import BrokerUnavailable
from celery_sqlbeat.publish.transports import MessageTransport, RedisTransport, one_line

_TRUSTED_SECONDS = 1.0  # how long after its last answer a connection is not probed
_LONGEST_PROBE = 2.0  # seconds; an answer takes a millisecond, and a new connection needs the rest


class BrokerConnection:
    """Holds at most one connection, and the transport over it."""

    def __init__(self, app: Any, patience: float) -> None:
        self._app, self._patience = app, patience
        self._transport: MessageTransport | None = None
        self._pid = os.getpid()

    @property
    def transport(self) -> MessageTransport | None:
        """The transport over this process's connection; None without one that works."""
        if self._transport is not None and self._pid != os.getpid():
            self._transport.forget()
            self._transport = None
        if self._transport is not None and self._transport.broken:
            self.close()
        return self._transport

    @property
    def was_refused(self) -> bool:
        """Whether the broker has just closed the connection or channel because of a message."""
        return self._transport is not None and self._transport.refused

    def connect(self, seconds: float) -> None:
        """Connect within so many seconds, or raise BrokerUnavailable."""
        end = environment.monotonic() + seconds
        transport = self.transport
        if transport is not None and not self._answers(transport, min(seconds / 2, _LONGEST_PROBE)):
            self.close()
        if self._transport is None:
            self._open(max(end - environment.monotonic(), seconds / 4))

    def _answers(self, transport: MessageTransport, seconds: float) -> bool:
        if environment.monotonic() - transport.answered_at < _TRUSTED_SECONDS:
            return True
        try:
            transport.probe(seconds)
        except Exception as error:
            transport.broken = one_line(error)
            return False
        transport.answered_at = environment.monotonic()
        return True

    def _open(self, seconds: float) -> None:
        connection = None
        try:
            connection = self._connection(seconds)
            connection.ensure_connection(  # each host of the URL once
                max_retries=max(len(connection.alt) - 1, 0), interval_start=0, interval_step=0, timeout=seconds
            )
            self._transport, self._pid = self._transport_over(connection, seconds), os.getpid()
        except Exception as error:
            if connection is not None:
                connection.collect()
            raise unreachable(self._app, one_line(error)) from error

    def _connection(self, seconds: float) -> Any:
        options = self._app.conf.broker_transport_options or {}
        connection = self._app.connection_for_write(heartbeat=0)  # an idle beat need not wake for it
        share = seconds / max(len(connection.alt), 1)
        connection.connect_timeout = min(connection.connect_timeout or share, share)
        if connection.get_transport_cls().driver_type == "redis":
            connect = min(options.get("socket_connect_timeout") or share, share)
            answer = min(options.get("socket_timeout") or self._patience, self._patience, share)
            connection.transport_options = {
                **connection.transport_options,
                "socket_connect_timeout": connect,
                "socket_timeout": answer,
                "retry_on_timeout": False,  # a push without an answer in time would be repeated
            }
        elif not is_on(CONFIRMING):  # py-amqp waits for each confirmation
            connection.transport_options = {**connection.transport_options, "confirm_publish": True}
        return connection

    def _transport_over(self, connection: Any, seconds: float) -> MessageTransport:
        app, link = self._app, connection.connection
        if is_on(CONFIRMING) and isinstance(link, amqp.Connection) and _confirms(link):
            from celery_sqlbeat.publish.amqp import AmqpTransport

            return AmqpTransport(app, connection, seconds)
        producer = app.amqp.Producer(connection, auto_declare=False)
        if is_on(BATCHES) and _is_plain_redis(producer.channel):
            return RedisTransport(connection, producer)
        return MessageTransport(connection, producer)

    def close(self) -> None:
        """Close the connection, if there is one; errors are ignored."""
        transport, self._transport = self._transport, None
        if transport is not None:
            with contextlib.suppress(Exception):  # the connection is gone either way
                transport.forget() if self._pid != os.getpid() else transport.close()


def unreachable(app: Any, text: str) -> BrokerUnavailable:
    """Build the error of a broker that cannot be reached, without the secrets of its URLs."""
    urls = app.conf.broker_write_url or app.conf.broker_url or ""
    urls = urls.split(";") if isinstance(urls, str) else list(urls)
    for url in urls:
        text = redaction.mask_text(text, url)
    return BrokerUnavailable(f"the broker {' or '.join(map(redaction.masked, urls))} cannot be reached: {text}")


def _confirms(link: Any) -> bool:
    capabilities = link.server_properties.get("capabilities") or {}
    return bool(capabilities.get("publisher_confirms"))


def _is_plain_redis(channel: Any) -> bool:
    """Return whether a push is one command on one server; a cluster's pipeline differs."""
    module = sys.modules.get("kombu.transport.redis")
    return module is not None and getattr(type(channel), "_put", None) is module.Channel._put
