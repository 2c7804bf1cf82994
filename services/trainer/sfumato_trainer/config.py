"""[trainer]: the trainer service's section of the configuration."""

from dataclasses import dataclass
from pathlib import Path

from sfumato_chassis.config import at_least, device_field


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig:
    """[trainer].

    Attributes:
        model_roots: Folders on the server that hold base models; ``<data_dir>/models`` always is one.
        device: Where runs train: ``cpu`` or ``cuda:<n>``. One run at a time.
        max_queued_runs: More are refused with QUEUE_FULL.
        max_idle_attempts: A run whose process dies this often in a row without having taken a step
            fails with WORKER_DIED_REPEATEDLY.
        pin_minutes: How long a dataset version stays pinned without being renewed; at most a day.
        allow_download: Whether base models that are not on this machine are fetched from the Hub.
    """

    model_roots: tuple[Path, ...] = ()
    device: str = device_field()
    max_queued_runs: int = at_least(0, 100)
    max_idle_attempts: int = at_least(1, 5)
    pin_minutes: float = at_least(0.1, 60.0, at_most=1440.0)
    allow_download: bool = True


SECTION = TrainerConfig
