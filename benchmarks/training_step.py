"""A training step with events, metrics and EMA on, against a bare PyTorch loop of the same model.

Both train the same tiny denoiser with the same adapter, batch and pictures from memory. Rounds alternate,
and the median of the steps' times is compared.
"""

import hashlib
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from benchmarks.rows import Row

from sfumato_diffusion import objective
from sfumato_diffusion.adapters import AdapterShape, inject_adapter
from sfumato_diffusion.families.registry import build_tiny, family_info, load_family
from sfumato_diffusion.schedule import flow_schedule
from sfumato_imaging.reader import read_image
from sfumato_trainer.events import Event, Progress
from sfumato_trainer.settings import (
    Lineage,
    ModelSource,
    TrainingPlan,
    TrainingSample,
    TrainingSettings,
)
from sfumato_trainer.stages.reporter import Command
from sfumato_trainer.stages.run import run_training

EMOJI = Path(__file__).parents[1] / "examples" / "emoji"
FAMILIES = ("flux.1", "z-image")
TARGET = 1.25
ROUNDS = 3
STEPS = 40
WARM_UP = 5
BATCH = 4
RANK = 8
LEARNING_RATE = 1e-3


class Stopwatch:
    """Stands in for the worker channel and notes when each step was told."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, Progress):
            self.times.append(time.perf_counter())

    def command(self) -> Command:
        return "none"

    def may_publish(self) -> bool:
        return True

    def failpoint(self, name: str) -> None:
        """No place of a benchmark is armed."""

    def step_seconds(self) -> float:
        """Median over the steps after the first few."""
        return median_step(self.times)


def median_step(times: list[float]) -> float:
    """Median time between two marks, the first few left out."""
    return statistics.median(
        b - a for a, b in zip(times[WARM_UP:], times[WARM_UP + 1 :], strict=False)
    )


def ours(family: str, model: Path, folder: Path) -> float:
    """Seconds a step of the real stages."""
    samples, paths = [], {}
    for path in sorted(EMOJI.glob("*.png")):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        paths[digest] = path
        samples.append(
            TrainingSample(
                file_name=path.name,
                image_digest=digest,
                width=64,
                height=64,
                caption=path.with_suffix(".txt").read_text().strip(),
            )
        )
    settings = TrainingSettings(
        base_model=ModelSource(reference="tiny"),
        family=family,
        resolution=64,
        train_steps=STEPS,
        learning_rate=LEARNING_RATE,
        rank=RANK,
        alpha=float(RANK),
        target_modules=family_info(family).adapter_targets,
        learning_rate_scheduler="constant",
        batch_size=BATCH,
        ema_decay=0.99,
        gradient_checkpointing=False,
        cache_variants=1,
        save_steps=STEPS,
    )
    stopwatch = Stopwatch()
    plan = TrainingPlan(
        run="run",
        attempt=1,
        fence=1,
        settings=settings,
        samples=tuple(samples),
        lineage=Lineage(dataset="emoji", dataset_digest="0" * 64),
        model_path=model,
        work_directory=folder / f"run-{time.monotonic_ns()}",
        cache_directory=folder / "cache",
    )
    outcome = run_training(plan, stopwatch, blob_path=lambda digest: paths[digest])
    assert outcome.result == "succeeded", outcome
    return stopwatch.step_seconds()


def bare(family_name: str, model: Path) -> float:
    """Seconds a step of the least loop that trains the same."""
    family = load_family(family_name)
    vae = family.load_vae(model, precision="fp32")
    encoders = family.load_text_encoders(model, precision="fp32")
    pictures = sorted(EMOJI.glob("*.png"))
    latents = torch.stack([family.encode_image(vae, read_image(path)).mean for path in pictures])
    prompts = [
        family.encode_prompt(encoders, path.with_suffix(".txt").read_text().strip())
        for path in pictures
    ]
    schedule = flow_schedule(family.load_scheduler(model), None)
    denoiser = family.load_denoiser(model, precision="fp32")
    shape = AdapterShape(rank=RANK, alpha=float(RANK), targets=family.info.adapter_targets)
    parameters = inject_adapter(denoiser, shape)
    optimiser = torch.optim.AdamW(parameters.values(), lr=LEARNING_RATE)
    generator = torch.Generator().manual_seed(0)
    times = []
    for step in range(STEPS):
        rows = [(step * BATCH + offset) % len(pictures) for offset in range(BATCH)]
        x = latents[rows]
        noise = torch.randn(x.shape, generator=generator)
        indexes = objective.draw_indexes(BATCH, schedule.num_timesteps, generator)
        sigma = schedule.sigma(indexes)
        x_t = objective.add_noise(x, noise, sigma)
        prediction = family.predict(denoiser, x_t, sigma, [prompts[row] for row in rows])
        loss = torch.nn.functional.mse_loss(prediction.float(), noise - x)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        times.append(time.perf_counter())
    return median_step(times)


def measure() -> list[Row]:
    """One row for each family."""
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for family in FAMILIES:
            model = folder / family
            build_tiny(family, model)
            ours_times, bare_times = alternate(
                partial(ours, family, model, folder), partial(bare, family, model)
            )
            rows.append(
                Row(
                    what=f"training step, tiny {family}, batch {BATCH}",
                    unit="ms",
                    ours=statistics.median(ours_times) * 1000,
                    floor=statistics.median(bare_times) * 1000,
                    target=TARGET,
                )
            )
    return rows


def alternate(
    first: Callable[[], float], second: Callable[[], float]
) -> tuple[list[float], list[float]]:
    """Runs both in turn, so that a busy moment meets both."""
    pairs = [(first(), second()) for _ in range(ROUNDS)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
