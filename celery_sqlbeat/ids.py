"""Run ids and claim ids, made by the client in batches.

A run id is a UUID of version 7, so that new rows stay together in the index; a claim id is a secret of 128 random bits.
"""

import os
import time
from collections.abc import Callable
from uuid import UUID

_VARIANT = bytes(byte & 0x3F | 0x80 for byte in range(256))  # the two highest bits of a UUID's ninth byte are 10
_PER_MILLISECOND = 4096  # the 12 bits after the version number count within a batch, which keeps a batch in order


class Ids:
    """Makes ids; a test may give its own source of randomness and of milliseconds."""

    def __init__(
        self,
        random_bytes: Callable[[int], bytes] = os.urandom,
        milliseconds: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._random_bytes = random_bytes
        self._milliseconds = milliseconds

    def run_ids(self, count: int) -> list[str]:
        """As many new run ids as asked for, in ascending order."""
        noise = bytearray(self._random_bytes(8 * count))
        noise[::8] = noise[::8].translate(_VARIANT)
        tails = noise.hex()
        now = self._milliseconds()
        made: list[str] = []
        while len(made) < count:
            stamp = f"{now + len(made) // _PER_MILLISECOND:012x}"
            head = f"{stamp[:8]}-{stamp[8:]}-7"
            first = len(made)
            made += [
                f"{head}{at - first:03x}-{tails[16 * at : 16 * at + 4]}-{tails[16 * at + 4 : 16 * at + 16]}"
                for at in range(first, min(count, first + _PER_MILLISECOND))
            ]
        return made

    def claim_ids(self, count: int) -> list[str]:
        """As many new claim ids as asked for: all 128 bits are random."""
        noise = self._random_bytes(16 * count).hex()
        return [
            f"{noise[at : at + 8]}-{noise[at + 8 : at + 12]}-{noise[at + 12 : at + 16]}-"
            f"{noise[at + 16 : at + 20]}-{noise[at + 20 : at + 32]}"
            for at in range(0, 32 * count, 32)
        ]

    def one(self) -> str:
        """One random id, for a node or a start."""
        return str(UUID(bytes=self._random_bytes(16), version=4))
