"""Models on a mount that hangs, without a server."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from sfumato_chassis.errors import NotFound
from sfumato_chassis.threads import MAX_READERS
from sfumato_trainer import resolver
from sfumato_trainer.config import TrainerConfig
from sfumato_trainer.resolver import RunResolver
from sfumato_trainer.run_request import BaseModel, RunRequest

PATIENCE_SECONDS = 10
SHORT_SECONDS = 0.2


async def test_models_that_hang_stop_nothing_but_calls_that_read_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    resolve_base = resolver.resolve_base

    def hang(*args: Any, **kwargs: Any) -> Any:
        go_on.wait(PATIENCE_SECONDS)
        return resolve_base(*args, **kwargs)

    monkeypatch.setattr(resolver, "resolve_base", hang)
    # A model that is not there is refused before any dataset is asked for.
    runs = RunResolver(TrainerConfig(), None, data_dir=tmp_path)  # type: ignore[arg-type]
    asked = RunRequest(
        owner="local",
        display_name="",
        base=BaseModel(kind="directory", reference="absent", revision="", message={}),
        family=None,
        dataset="cats",
        dataset_version=None,
        requested={},
    )

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT_SECONDS):
                await runs.resolve(asked)

    await asyncio.gather(*(give_up() for _ in range(MAX_READERS + 20)))
    assert await asyncio.wait_for(asyncio.to_thread(int), PATIENCE_SECONDS / 2) == 0
    go_on.set()
    with pytest.raises(NotFound):
        await asyncio.wait_for(runs.resolve(asked), PATIENCE_SECONDS)
