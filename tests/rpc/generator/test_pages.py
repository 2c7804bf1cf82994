"""Pages of records that would not fit one message together."""

from datetime import UTC, datetime

import pytest
import pytest_asyncio

from sfumato_chassis.paging import MAX_PAGE_BYTES
from sfumato_generator import storage
from sfumato_generator.storage import ImageRecord

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = "x" * (MAX_PAGE_BYTES // 50)
NUM_IMAGES = 120


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def studio(studio_of):
    async with studio_of() as studio:
        yield studio


def image(number):
    return ImageRecord(
        name=f"image-{number:04d}",
        owner="local",
        generation="generation-1",
        sequence=number,
        create_time=datetime(2026, 1, 1, tzinfo=UTC),
        digest=f"sha256:{number:064d}",
        size_bytes=10,
        width=64,
        height=64,
        seed=number,
        model_revision="dir-0",
        configuration={"prompt": PROMPT},
        adapter_files=[],
    )


async def test_a_page_of_images_ends_before_it_is_too_large(studio):
    def add(connection):
        for number in range(NUM_IMAGES):
            storage.insert_image(connection, image(number))

    await studio.platform.database.write(add)
    listed = [found.seed async for found in studio.client.generator.list_images(page_size=200)]
    assert listed == list(reversed(range(NUM_IMAGES)))
