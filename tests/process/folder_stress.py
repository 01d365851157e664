"""One publisher or one consumer of the embedded broker's stress test, as a process of its own."""

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import kombu.connection
import kombu.entity
import kombu.messaging

import celery_sqlbeat.brokers  # noqa: F401 - makes folder:// known

Connection: Any = kombu.connection.Connection  # kombu leaves them without types
Consumer: Any = kombu.messaging.Consumer
Queue: Any = kombu.entity.Queue


def publish(url: str, name: str, count: str) -> None:
    """Publish so many numbered messages."""
    with Connection(url) as connection:
        queue = connection.SimpleQueue("stress")
        for number in range(int(count)):
            queue.put({"from": name, "n": number, "padding": "x" * (number % 5000)})


def consume(url: str, ledger: str, pace: str) -> None:
    """Record what was consumed, then acknowledge it, until the folder has a file named stop."""
    stop = Path(ledger).with_name("stop")

    def consumed(body: Any, message: Any) -> None:
        with open(ledger, "a") as out:
            out.write(json.dumps([body["from"], body["n"], bool(message.delivery_info.get("redelivered"))]) + "\n")
        time.sleep(float(pace))
        message.ack()

    with Connection(url) as connection:
        channel = connection.channel()
        channel.basic_qos(0, 16, False)
        with Consumer(channel, Queue("stress"), callbacks=[consumed]):
            while not stop.exists():
                try:
                    connection.drain_events(timeout=0.2)
                except socket.timeout:  # noqa: UP041 - as kombu calls it
                    continue
    os._exit(0)


if __name__ == "__main__":
    {"publish": publish, "consume": consume}[sys.argv[1]](*sys.argv[2:])
