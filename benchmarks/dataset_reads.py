"""How the first page of samples and the statistics of a version depend on how many samples it has.

One server holds a dataset of 10,000 and one of 100; "ours" is the large one and the floor the small one.
The same calls, in turn, through the client; what a server keeps of manifests is there after the first.

The filtered page takes every tenth sample. It reads more, so its target is wider: of the small dataset
all 100 samples are read, 10 of which fit; of the large one about 510, until 50 fit and the next is known.
A filter that fits fewer samples than a page reads the whole version, in a time that grows with its size.
"""

import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
from benchmarks.import_images import connected, import_seconds
from benchmarks.rows import Row
from benchmarks.servers import datasets_server
from PIL import Image

from sfumato.datasets.v1 import datasets_pb2, selection_pb2, versions_pb2
from sfumato_client import BlockingClient, Client

NUM_CALLS = 30
SMALL, LARGE = 100, 10_000
SIDE = 16
PAGE_SIZE = 50
TENTH = "tenth"
"""In the caption of every tenth sample."""
TARGET = 1.5
FILTERED_TARGET = 3.0


def make_pictures(folder: Path, num_pictures: int) -> None:
    """Small pictures of noise, each with a caption."""
    folder.mkdir()
    random = np.random.default_rng(num_pictures)
    for index in range(num_pictures):
        pixels = random.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        path = folder / f"{index:05}.png"
        Image.fromarray(pixels).save(path)
        said = f", a {TENTH} one" if index % 10 == 0 else ""
        path.with_suffix(".txt").write_text(f"noise, number {index}{said}", encoding="utf-8")


async def first_page(client: Client, dataset: str, caption_contains: str = "") -> int:
    """Asks for one page; answers how many samples came."""
    request = datasets_pb2.ListSamplesRequest(
        version=versions_pb2.VersionRef(dataset=dataset),
        page_size=PAGE_SIZE,
        filter=selection_pb2.SampleFilter(caption_contains=caption_contains),
    )
    datasets = client.datasets
    page = await datasets.caller.repeatable(datasets.stub.ListSamples, request)
    return len(page.samples)


async def version_statistics(client: Client, dataset: str) -> int:
    """Asks for what is said of the latest version; answers of how many samples."""
    found = await client.datasets.get_version_statistics(dataset)
    return found.width.count


async def call_seconds(call: Callable[[], Awaitable[int]], expected: int) -> float:
    """One call, whose answer is checked."""
    began = time.perf_counter()
    answer = await call()
    took = time.perf_counter() - began
    assert answer == expected, (answer, expected)
    return took


async def compare(
    what: str,
    call: Callable[[str], Awaitable[int]],
    expected: dict[str, int],
    target: float,
) -> Row:
    """The same call of each dataset, in turn. ``expected`` are the answers by dataset, the small first."""
    times: dict[str, list[float]] = {dataset: [] for dataset in expected}
    for _ in range(NUM_CALLS):
        for dataset, answer in expected.items():
            times[dataset].append(await call_seconds(lambda name=dataset: call(name), answer))
    small, large = (statistics.median(each) * 1e3 for each in times.values())
    return Row(what=what, unit="ms", ours=large, floor=small, target=target)


async def rows(client: Client) -> list[Row]:
    """Every call that is compared."""
    whole = dict.fromkeys(("small", "large"), PAGE_SIZE)
    return [
        await compare(
            f"first page of {LARGE} samples, against {SMALL}",
            lambda dataset: first_page(client, dataset),
            whole,
            TARGET,
        ),
        await compare(
            f"first page of every tenth of {LARGE} samples, against {SMALL}",
            lambda dataset: first_page(client, dataset, TENTH),
            {"small": SMALL // 10, "large": PAGE_SIZE},
            FILTERED_TARGET,
        ),
        await compare(
            f"statistics of {LARGE} samples, against {SMALL}",
            lambda dataset: version_statistics(client, dataset),
            {"small": SMALL, "large": LARGE},
            TARGET,
        ),
    ]


def import_both(client: BlockingClient, root: Path) -> None:
    """Makes and imports both datasets, and says how long the large one took."""
    for dataset, num_samples in (("small", SMALL), ("large", LARGE)):
        make_pictures(root / dataset, num_samples)
        took = import_seconds(client, root / dataset, num_samples=num_samples)
        print(f"import of {num_samples} pictures of {SIDE} x {SIDE}: {took:.1f} s")


def measure() -> list[Row]:
    """One row for each call."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / "root"
        root.mkdir()
        with (
            datasets_server(Path(name) / "data", root) as address,
            connected(address) as client,
        ):
            import_both(client, root)
            return client.call(rows)
