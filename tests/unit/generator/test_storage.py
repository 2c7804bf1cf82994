"""The gallery's order, on a real store."""

from datetime import UTC, datetime, timedelta

import pytest

from sfumato_chassis.database import Database
from sfumato_chassis.errors import InvalidArgument, NotFound
from sfumato_chassis.schema import CHASSIS_SCHEMA, prepare_database
from sfumato_generator import storage
from sfumato_generator.app import SCHEMA
from sfumato_generator.storage import ImageRecord

START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def database(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'store.sqlite3'}")
    await prepare_database(database, [CHASSIS_SCHEMA, SCHEMA])
    yield database
    database.close()


def image(number, *, seconds, owner="local", generation="generation-1"):
    return ImageRecord(
        name=f"image-{number:04d}",
        owner=owner,
        generation=generation,
        sequence=number,
        create_time=START + timedelta(seconds=seconds),
        digest=f"sha256:{number:064d}",
        size_bytes=10,
        width=64,
        height=64,
        seed=number,
        model_revision="dir-0",
        configuration={},
        adapter_files=[],
    )


async def add(database, *images):
    for record in images:
        await database.write(
            lambda connection, record=record: storage.insert_image(connection, record)
        )


async def page(database, *, token="", size=2, owner="local", generation=None):
    found = await database.read(
        lambda connection: storage.select_images(
            connection, owner, generation=generation, size=size, token=token
        )
    )
    return [record.seed for record in found.rows], found.next_page_token


async def test_newest_first_and_by_name_within_one_time(database):
    await add(database, *(image(number, seconds=number // 3) for number in range(1, 8)))
    seen, token = await page(database)
    await add(database, image(20, seconds=9), image(21, seconds=1))
    while token:
        more, token = await page(database, token=token)
        seen += more
    # 21 came in behind the cursor; 20 is newer than the first page and is not shown.
    assert seen == [7, 6, 21, 5, 4, 3, 2, 1]


async def test_a_page_is_of_one_owner_and_of_one_generation_if_asked(database):
    await add(
        database,
        image(1, seconds=1),
        image(2, seconds=2, owner="eve"),
        image(3, seconds=3, generation="generation-2"),
    )
    assert await page(database) == ([3, 1], "")
    assert await page(database, generation="generation-1") == ([1], "")
    assert await page(database, owner="eve") == ([2], "")


async def test_a_token_is_bound_to_its_query(database):
    await add(database, *(image(number, seconds=number) for number in range(3)))
    _, token = await page(database)
    for other in ({"owner": "eve"}, {"generation": "generation-1"}):
        with pytest.raises(InvalidArgument):
            await page(database, token=token, **other)


async def test_a_snapshot_shows_images_up_to_its_sequence(database):
    await add(database, image(3, seconds=1), image(5, seconds=2))
    shown = await database.read(
        lambda connection: storage.images_of_generation(
            connection, "generation-1", "local", up_to_sequence=4
        )
    )
    assert [record.sequence for record in shown] == [3]


async def test_an_image_of_another_owner_is_not_there(database):
    await add(database, image(1, seconds=1))
    with pytest.raises(NotFound):
        await database.read(lambda connection: storage.get_image(connection, "eve", "image-0001"))


async def test_a_generation_that_was_removed_is_not_there(database):
    with pytest.raises(NotFound) as refusal:
        await database.read(lambda connection: storage.get_generation(connection, "generation-1"))
    assert (refusal.value.resource_type, refusal.value.resource_name) == (
        "generation",
        "generation-1",
    )
