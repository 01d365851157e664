"""On Redis, kombu makes a client for each message that it takes and for each acknowledgement; that costs about as much
as the round trip. A channel that has had messages of ours makes one, and uses it again."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any


class OneClient:
    """Stands for the `conn_or_acquire` of a channel."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._client: Any = None
        channel.conn_or_acquire = self

    def __call__(self, client: Any = None) -> AbstractContextManager[Any]:
        """The given client, or the channel's."""
        return nullcontext(client or self._of_channel())

    def leave(self) -> None:
        """Let kombu do as it does."""
        self._channel.__dict__.pop("conn_or_acquire", None)

    def _of_channel(self) -> Any:
        # A channel that closes has its connections in another pool from then on.
        if self._client is None or self._client.connection_pool is not self._channel.pool:
            self._client = self._channel._create_client()
        return self._client
