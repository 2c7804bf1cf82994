"""From the start of `sfumato serve` to its first line, against `python -c 'import grpc'`.

Both run from bytecode, as installed packages do: a start that had to compile a checkout's sources
would measure Python's compiler.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.rows import Row

NUM_ROUNDS = 7
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    # A server refuses a variable that begins with SFUMATO_ and is none of its settings.
    if name != "PYTHONDONTWRITEBYTECODE" and not name.startswith("SFUMATO_BENCH_")
}


def seconds_to_import_grpc() -> float:
    """A process that imports grpc and ends."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import grpc"], check=True, env=ENVIRONMENT)
    return time.perf_counter() - began


def seconds_to_serve(data_dir: Path) -> float:
    """Until the first line on standard output; the process is then stopped."""
    command = [str(Path(sys.executable).with_name("sfumato")), "serve", "--port", "0"]
    began = time.perf_counter()
    with subprocess.Popen(
        [*command, "--data-dir", str(data_dir)],
        cwd=data_dir,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        took = time.perf_counter() - began
        server.terminate()
    if not line:
        raise RuntimeError("the server did not start")
    return took


def measure() -> list[Row]:
    """On an empty data folder and on one that is there already."""
    floor, fresh, known = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        seconds_to_import_grpc()
        seconds_to_serve(Path(folder))
        for index in range(NUM_ROUNDS):
            data_dir = Path(folder) / str(index)
            data_dir.mkdir()
            floor.append(seconds_to_import_grpc())
            fresh.append(seconds_to_serve(data_dir))
            known.append(seconds_to_serve(data_dir))
    return [
        Row(
            what=f"sfumato serve ready, {what}",
            unit="s",
            ours=statistics.median(ours),
            floor=statistics.median(floor),
            target=5.0,
        )
        for what, ours in (("fresh folder", fresh), ("known folder", known))
    ]
