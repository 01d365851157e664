"""A port that leads to a server, and loses what the server answers when a test wants it."""

import socket
import threading
from contextlib import suppress


class LostAnswers:
    """A wire over which a server does what it was told, and nobody hears of it."""

    def __init__(self, port: int) -> None:
        self._there = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.to_lose = 0
        """How many answers from now on are lost, each with its connection."""
        self.passes = threading.Event()
        """While it is not set each request is held back, also when its sender has given up."""
        self.passes.set()
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                there = socket.create_connection(self._there)
                threading.Thread(target=self._requests, args=(client, there), daemon=True).start()
                threading.Thread(target=self._answers, args=(client, there), daemon=True).start()

    def _requests(self, client: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                self.passes.wait()
                there.sendall(data)
        with suppress(OSError):
            there.shutdown(socket.SHUT_WR)

    def _answers(self, client: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):
            while data := there.recv(65536):
                with self._lock:
                    is_lost = self.to_lose > 0
                    self.to_lose -= is_lost
                if is_lost:
                    break
                client.sendall(data)
        for each in (client, there):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
