"""How often steps are told, and what of them."""

import itertools

import pytest

from sfumato_generator.progress import SECONDS_BETWEEN, StepProgress


def run(*, num_images, num_steps, seconds_a_step, first_image=0):
    """Every event with its time."""
    now = 0.0
    told = []
    progress = StepProgress(
        num_images=num_images,
        num_steps=num_steps,
        first_image=first_image,
        emit=lambda data: told.append((now, data)),
        monotonic=lambda: now,
    )
    for index in range(first_image, num_images):
        on_step = progress.for_image(index)
        for done in range(1, num_steps + 1):
            now += seconds_a_step
            on_step(done, num_steps)
    return told


@pytest.mark.parametrize("seconds_a_step", [0.001, 0.03, 0.19])
def test_at_most_five_a_second_but_for_the_last(seconds_a_step):
    told = run(num_images=3, num_steps=50, seconds_a_step=seconds_a_step)
    times = [time for time, _ in told[:-1]]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(gap >= SECONDS_BETWEEN for gap in gaps)
    last = told[-1][1]
    assert (last["image"], last["step"], last["eta_seconds"]) == (3, 50, 0.0)


def test_slow_steps_are_all_told_with_the_time_that_is_left():
    told = run(num_images=3, num_steps=2, seconds_a_step=1.0, first_image=1)
    assert [(data["image"], data["step"]) for _, data in told] == [(2, 1), (2, 2), (3, 1), (3, 2)]
    assert [data["eta_seconds"] for _, data in told] == [3.0, 2.0, 1.0, 0.0]
