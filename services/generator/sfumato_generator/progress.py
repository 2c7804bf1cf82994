"""Where a generation stands, told at most five times a second."""

import time
from collections.abc import Callable, Mapping
from typing import Any

SECONDS_BETWEEN = 0.2


class StepProgress:
    """Turns denoising steps into ``step`` events. The last step of all is always told."""

    def __init__(
        self,
        *,
        num_images: int,
        num_steps: int,
        first_image: int,
        emit: Callable[[Mapping[str, Any]], None],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            num_images: In all.
            num_steps: Of each.
            first_image: Images before it, counted from 0, were made by an earlier attempt.
            emit: Takes the fields of ``GenerationProgress``, with ``eta_seconds``.
            monotonic: The clock.
        """
        self._num_images = num_images
        self._num_steps = num_steps
        self._first_image = first_image
        self._emit = emit
        self._monotonic = monotonic
        self._began = monotonic()
        self._told = float("-inf")

    def for_image(self, index: int) -> Callable[[int, int], None]:
        """What is to be called with (steps done, steps in all) after each step of image ``index``."""

        def on_step(done: int, _total: int) -> None:
            self._step(index, done)

        return on_step

    def _step(self, index: int, done: int) -> None:
        now = self._monotonic()
        is_last = index + 1 == self._num_images and done == self._num_steps
        if not is_last and now - self._told < SECONDS_BETWEEN:
            return
        self._told = now
        num_done = (index - self._first_image) * self._num_steps + done
        num_left = (self._num_images - index) * self._num_steps - done
        self._emit(
            {
                "image": index + 1,
                "num_images": self._num_images,
                "step": done,
                "num_steps": self._num_steps,
                "eta_seconds": (now - self._began) / num_done * num_left,
            }
        )
