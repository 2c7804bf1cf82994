"""First stage: every picture of the dataset version as a verified local file."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from sfumato_trainer.events import Preparing
from sfumato_trainer.settings import TrainingSample
from sfumato_trainer.stages.reporter import Reporter, TrainingError, check_early_end

BlobPath = Callable[[str], Path]
"""Where the blob of a digest (hex) lies on this machine."""


def fetch_samples(
    samples: Sequence[TrainingSample], blob_path: BlobPath, reporter: Reporter
) -> list[Path]:
    """Path of each sample's picture, in order; every file's SHA-256 is checked.

    Raises TrainingError SAMPLE_MISSING or SAMPLE_DAMAGED, and EndedEarlyError.
    """
    paths = []
    size_bytes = 0
    for done, sample in enumerate(samples, start=1):
        check_early_end(reporter)
        path = blob_path(sample.image_digest)
        size_bytes += _verified_size(sample, path)
        paths.append(path)
        reporter.emit(
            Preparing(stage="fetch_samples", done=done, total=len(samples), size_bytes=size_bytes)
        )
    return paths


def _verified_size(sample: TrainingSample, path: Path) -> int:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size_bytes = file.tell()
    except OSError as error:
        raise TrainingError(
            "SAMPLE_MISSING",
            f"{sample.file_name}: its blob is missing",
            samples=(sample.file_name,),
        ) from error
    if digest != sample.image_digest:
        raise TrainingError(
            "SAMPLE_DAMAGED",
            f"{sample.file_name}: the stored bytes are not those of its digest",
            samples=(sample.file_name,),
        )
    return size_bytes
