"""A wire to PostgreSQL that answers with unlisted errors, as a server amid a fail-over."""

import select
import socket
import struct
from contextlib import suppress

from tests.support.brokers import Wire

ODD_STATE = "ZZ001"
_READY = b"Z" + struct.pack("!I", 5)


class SickWire(Wire):
    """While `is_sick`, connections are made, and get their settings.

    Each further statement gets an error.
    """

    is_sick = False
    executes_all_the_same = False
    """Whether the statement reaches the server, and only its answer is another."""
    told = 0
    """How many statements were answered with an error."""

    def _carry(self, client: socket.socket, there: socket.socket) -> None:
        """Look at the messages of the client, one by one, once the session is ready."""
        with suppress(OSError):
            _Talk(self, client, there).go_on()
        for each in (client, there):
            each.close()


class _Talk:
    """One connection."""

    def __init__(self, wire: SickWire, client: socket.socket, there: socket.socket) -> None:
        self._wire, self._client, self._there = wire, client, there
        self._is_ready = self._is_set = self._swallows = False
        self._asked = b""

    def go_on(self) -> None:
        while True:
            for source in select.select([self._client, self._there], [], [])[0]:
                data = source.recv(65536)
                if not data:
                    raise ConnectionResetError
                if source is self._client:
                    self._ask(data)
                else:
                    self._answer(data)

    def _answer(self, data: bytes) -> None:
        is_end = data[-6:-1] == _READY  # the server says this last, and waits
        self._is_ready = self._is_ready or is_end
        if not self._swallows:
            self._client.sendall(data)
        elif is_end:
            self._swallows = False
            self._refuse()

    def _ask(self, data: bytes) -> None:
        if not (self._is_set and self._wire.is_sick):
            self._is_set = self._is_ready
            self._there.sendall(data)
            return
        self._asked += data
        while len(self._asked) >= 5:
            length = 1 + struct.unpack("!I", self._asked[1:5])[0]
            if len(self._asked) < length:
                return
            message, self._asked = self._asked[:length], self._asked[length:]
            if self._wire.executes_all_the_same:
                self._swallows = True
                self._there.sendall(message)
            elif message[:1] in b"QS":  # what ends a question
                self._refuse()

    def _refuse(self) -> None:
        self._wire.told += 1
        fields = f"SERROR\0VERROR\0C{ODD_STATE}\0Mthe server is between two states\0\0".encode()
        self._client.sendall(b"E" + struct.pack("!I", 4 + len(fields)) + fields + _READY + b"I")
