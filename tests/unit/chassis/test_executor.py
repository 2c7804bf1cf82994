import os
import time
from pathlib import Path

from sfumato_chassis.executor import NUM_LOGS_KEPT, LocalExecutor, WorkerSpec


async def test_the_newest_logs_are_kept(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for age in range(10):
        log = logs / f"old-{age}.log"
        log.touch()
        written = time.time() - 100 * (age + 1)
        os.utime(log, (written, written))
    (logs / "notes.txt").touch()
    executor = LocalExecutor(threads=1)
    process = await executor.start(
        WorkerSpec(
            worker_id="new",
            module="platform",
            configuration={},
            configuration_file=tmp_path / "run" / "new.json",
            log_folder=logs,
        )
    )
    await executor.wait(process)

    kept = [f"old-{age}.log" for age in range(NUM_LOGS_KEPT - 1)]
    assert sorted(path.name for path in logs.iterdir()) == ["new.log", "notes.txt", *kept]
    assert (logs / "new.log").read_text(), "what the worker says is in it"
