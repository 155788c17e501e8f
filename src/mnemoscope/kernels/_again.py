"""A checkpointed walk is made again on the way back, which must find what the way there has left."""

from __future__ import annotations

from contextlib import ExitStack

from mnemoscope.kernels import _dispatch, _state_gradients


class AsNow:
    """While open, the backend and the noting of walks are what they were when this was made.

    Both change how a walk runs. It is opened once for each way back: a graph that is kept has several.
    """

    def __init__(self) -> None:
        self._backend, self._noting = _dispatch.chosen(), _state_gradients.noting()

    def __enter__(self) -> None:
        self._open = ExitStack()
        self._open.enter_context(_dispatch.backend(self._backend))
        self._open.enter_context(_state_gradients.noted() if self._noting else _state_gradients.unnoted())

    def __exit__(self, *_: object) -> None:
        self._open.close()
