"""What each thread runs is read without a garbage collection in between."""

import gc
import sys
import threading

import pytest

from celery_sqlbeat import environment


@pytest.mark.parametrize("is_enabled", [True, False])
def test_nothing_is_collected_while_frames_are_read(monkeypatch: pytest.MonkeyPatch, is_enabled: bool) -> None:
    """Python before 3.11.8 would wait for a lock that the same thread holds."""
    seen: list[bool] = []
    read = sys._current_frames

    def watched() -> object:
        seen.append(gc.isenabled())
        return read()

    monkeypatch.setattr(sys, "_current_frames", watched)
    was_enabled = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        frames = environment.frames()
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
    assert seen[-1] is False
    assert threading.get_ident() in frames
