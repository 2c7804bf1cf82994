"""An import of a folder of photo-like pictures, from CreateImport to the event that ends it.

The floor is a pool of as many processes as the service has verifiers that reads, decodes, hashes and
copies each file. The import also makes three previews and a perceptual hash of each picture, resolves its
caption, has both files on the disk before it goes on, and publishes a version; with one decode at 3 ms it
comes to a third of the floor's rate on two cores, and must not fall below a quarter. The floor's processes
are running before the clock starts; those of the import start within its time.

Where SFUMATO_BENCH_RIVAL_PYTHON names an interpreter that has Hugging Face's ``datasets``, the import is
also compared with loading the folder as "imagefolder" and decoding every picture, imports left out.
"""

import hashlib
import multiprocessing
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.pool import Pool
from pathlib import Path

import numpy as np
from benchmarks.rows import Row
from benchmarks.servers import datasets_server
from PIL import Image

from sfumato.datasets.v1 import imports_pb2
from sfumato_client import Addresses, BlockingClient, Client, Connection, Finished
from sfumato_datasets.verifier_pool import VerifierPool

NUM_PICTURES = 1_000
WIDTH, HEIGHT = 1024, 768
QUALITY = 90
NOISE = 6.0
"""Standard deviation, of 255; pictures of about 240 KB come of it."""
ROUNDS = 3
FLOOR_TARGET = 0.25
RIVAL_TARGET = 0.3
RIVAL = "SFUMATO_BENCH_RIVAL_PYTHON"
# A row's picture is decoded in full when it is read.
RIVAL_PROGRAM = """
import sys, time
from datasets import load_dataset
folder, num_processes = sys.argv[1], int(sys.argv[2])
began = time.perf_counter()
loaded = load_dataset("imagefolder", data_dir=folder, split="train", num_proc=num_processes)
sizes = loaded.map(
    lambda row: {"width": row["image"].size[0]},
    remove_columns=loaded.column_names,
    num_proc=num_processes,
)
print(len(sizes), time.perf_counter() - began)
"""


def make_picture(task: tuple[Path, int]) -> None:
    """Writes one JPEG and its caption: a field of colours under the grain of a sensor."""
    folder, index = task
    random = np.random.default_rng(index)
    colours = random.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    smooth = Image.fromarray(colours).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    grain = random.standard_normal((HEIGHT, WIDTH, 1), dtype=np.float32) * NOISE
    pixels = np.clip(np.asarray(smooth, dtype=np.float32) + grain, 0, 255).astype(np.uint8)
    path = folder / f"{index:05}.jpg"
    Image.fromarray(pixels).save(path, quality=QUALITY)
    path.with_suffix(".txt").write_text(f"a field of colours, number {index}", encoding="utf-8")


def copy_picture(task: tuple[Path, Path]) -> str:
    """Reads, decodes, hashes and copies one file; answers its SHA-256."""
    path, copy = task
    data = path.read_bytes()
    with Image.open(path) as image:
        image.load()
    copy.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


@contextmanager
def started_pool(num_processes: int) -> Iterator[Pool]:
    """Processes that all run already."""
    context = multiprocessing.get_context("spawn")
    started = context.Barrier(num_processes + 1)
    with context.Pool(num_processes, initializer=started.wait) as pool:
        started.wait()
        yield pool


@contextmanager
def connected(address: str) -> Iterator[BlockingClient]:
    """A client of a server without keys."""
    connection = Connection(addresses=Addresses.all_at(address))
    with BlockingClient(lambda: Client(connection)) as client:
        yield client


def import_seconds(client: BlockingClient, folder: Path, *, num_samples: int) -> float:
    """Imports a folder into a dataset of its name, and watches to the end."""
    request = imports_pb2.CreateImportRequest(
        dataset=folder.name, folder=imports_pb2.FolderSource(path=str(folder))
    )
    os.sync()  # what was written before is not to be flushed within this time
    began = time.perf_counter()
    created = client.call(lambda c: c.datasets.create_import(request))
    name = created.import_job.name
    *_, last = client.iterate(lambda c: c.datasets.watch_import(name))
    took = time.perf_counter() - began
    assert isinstance(last, Finished)
    assert not last.resource.status.HasField("error"), last.resource.status.error
    version = client.call(lambda c: c.datasets.get_dataset(folder.name)).latest_version
    assert version.num_samples == version.num_captioned == num_samples
    return took


def ours(pictures: Path, scratch: Path) -> float:
    """An import by a server that has seen none of the pictures."""
    with (
        datasets_server(scratch / "data", pictures.parent) as address,
        connected(address) as client,
    ):
        return import_seconds(client, pictures, num_samples=NUM_PICTURES)


def floor(pictures: Path, scratch: Path, num_processes: int) -> float:
    """A pool that decodes, hashes and copies."""
    os.sync()
    with started_pool(num_processes) as pool:
        began = time.perf_counter()
        tasks = [(path, scratch / path.name) for path in pictures.glob("*.jpg")]
        digests = set(pool.imap_unordered(copy_picture, tasks, chunksize=8))
        took = time.perf_counter() - began
    assert len(digests) == NUM_PICTURES
    return took


def rival(python: str, pictures: Path, scratch: Path, num_processes: int) -> float:
    """Hugging Face's ``datasets``, with an empty cache."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    cache = {"HF_HOME": str(scratch), "HF_DATASETS_CACHE": str(scratch / "datasets")}
    os.sync()
    ran = subprocess.run(
        [python, "-c", RIVAL_PROGRAM, str(pictures), str(num_processes)],
        check=True,
        cwd=scratch,
        env={**os.environ, **offline, **cache, "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    num_decoded, seconds = ran.stdout.splitlines()[-1].split()
    assert int(num_decoded) == NUM_PICTURES
    return float(seconds)


def measure() -> list[Row]:
    """One row for the floor, and one for the rival where there is one."""
    with VerifierPool() as pool:
        num_processes = pool.num_verifiers
    python = os.environ.get(RIVAL)
    times: dict[str, list[float]] = {"ours": [], "floor": [], "rival": []}
    with tempfile.TemporaryDirectory() as name:
        pictures, scratch = Path(name) / "pictures", Path(name) / "scratch"
        pictures.mkdir()
        with started_pool(num_processes) as making:
            making.map(make_picture, [(pictures, index) for index in range(NUM_PICTURES)])
        measures = {
            "ours": lambda: ours(pictures, scratch),
            "floor": lambda: floor(pictures, scratch, num_processes),
        }
        if python:
            measures["rival"] = lambda: rival(python, pictures, scratch, num_processes)
        for _ in range(ROUNDS):
            for who, seconds in measures.items():
                scratch.mkdir()
                times[who].append(seconds())
                shutil.rmtree(scratch)
    return [
        Row(
            what=f"import of {NUM_PICTURES} JPEGs of {WIDTH} x {HEIGHT}, {other}",
            unit="images/s",
            ours=NUM_PICTURES / statistics.median(times["ours"]),
            floor=NUM_PICTURES / statistics.median(times[who]),
            target=target,
            more_is_better=True,
        )
        for who, other, target in (
            ("floor", f"{num_processes} processes that decode, hash and copy", FLOOR_TARGET),
            ("rival", "`datasets` that loads and decodes", RIVAL_TARGET),
        )
        if times[who]
    ]
