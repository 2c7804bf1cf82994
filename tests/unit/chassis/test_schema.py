from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, create_engine, text

from sfumato_chassis.database import Database
from sfumato_chassis.schema import (
    CHASSIS_SCHEMA,
    Schema,
    SchemaError,
    create_tables,
    current_revision,
    prepare_database,
)
from sfumato_chassis.serve import SERVICES
from sfumato_chassis.upgrade import upgrade

MIGRATION = """
import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = {before!r}
branch_labels = None
depends_on = None


def upgrade() -> None:
    {body}
"""
FIRST = """op.create_table("old_things", sa.Column("name", sa.String(8), primary_key=True))"""
SECOND = """op.add_column("old_things", sa.Column("size", sa.Integer(), nullable=True))"""


def schemas() -> Iterator[Schema]:
    yield CHASSIS_SCHEMA
    for name in SERVICES:
        try:
            yield import_module(f"sfumato_{name}.app").SCHEMA
        except ModuleNotFoundError as error:
            if error.name != f"sfumato_{name}.app":
                raise


def described(connection: Connection) -> dict[str, Any]:
    """Everything SQLite knows of each table, in an order of its own."""
    names = connection.execute(
        text("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    ).scalars()
    found: dict[str, Any] = {}
    for name in names.all():
        columns = connection.execute(text(f"PRAGMA table_info('{name}')")).all()
        keys = connection.execute(text(f"PRAGMA foreign_key_list('{name}')")).all()
        indexes = []
        for index in connection.execute(text(f"PRAGMA index_list('{name}')")).all():
            parts = connection.execute(text(f"PRAGMA index_info('{index.name}')")).all()
            indexes.append((index.name, index.unique, [part.name for part in parts]))
        found[name] = (
            sorted(tuple(column)[1:] for column in columns),
            sorted(tuple(key)[2:] for key in keys),
            sorted(indexes, key=str),
        )
    return found


@pytest.mark.parametrize("schema", list(schemas()), ids=lambda schema: schema.name)
def test_the_migrations_lead_to_the_tables(schema: Schema) -> None:
    migrated, created = create_engine("sqlite://"), create_engine("sqlite://")
    with migrated.begin() as left, created.begin() as right:
        upgrade(left, schema)
        create_tables(right, schema)
        assert current_revision(left, schema) == current_revision(right, schema)
        from_migrations, from_tables = described(left), described(right)
        from_migrations.pop(schema.version_table)
        from_tables.pop(schema.version_table)
        assert from_migrations == from_tables
        assert all(name.startswith(f"{schema.name}_") for name in from_tables)
    migrated.dispose()
    created.dispose()


@pytest.fixture
def things(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Schema:
    """A schema with two revisions, in a package made here."""
    folder = tmp_path / "old_things_package" / "migrations"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    for revision, before, body in [("0001", None, FIRST), ("0002", "0001", SECOND)]:
        migration = MIGRATION.format(revision=revision, before=before, body=body)
        (folder / f"{revision}_step.py").write_text(migration)
    monkeypatch.syspath_prepend(str(tmp_path))
    metadata = MetaData()
    Table(
        "old_things",
        metadata,
        Column("name", String(8), primary_key=True),
        Column("size", Integer),
    )
    return Schema(name="old", metadata=metadata, package="old_things_package", revision="0002")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'old.sqlite3'}")
    yield opened
    opened.close()


async def test_an_older_database_is_upgraded_with_what_it_holds(
    things: Schema, database: Database
) -> None:
    def begin(connection: Connection) -> None:
        upgrade(connection, things, target="0001")
        connection.execute(text("INSERT INTO old_things VALUES ('kept')"))

    await database.write(begin)
    assert await database.read(lambda c: current_revision(c, things)) == "0001"
    await prepare_database(database, [CHASSIS_SCHEMA, things])
    assert await database.read(lambda c: current_revision(c, things)) == "0002"
    rows = await database.read(lambda c: c.execute(text("SELECT * FROM old_things")).all())
    assert [tuple(row) for row in rows] == [("kept", None)]


async def test_a_database_of_a_newer_version_is_refused_untouched(
    things: Schema, database: Database
) -> None:
    await prepare_database(database, [CHASSIS_SCHEMA, things])
    await database.write(
        lambda c: c.execute(text("UPDATE old_schema_version SET version_num = '9999'"))
    )
    before = await database.read(described)
    with pytest.raises(SchemaError, match="old"):
        await prepare_database(database, [CHASSIS_SCHEMA, things])
    assert await database.read(described) == before


async def test_a_fresh_database_is_made_once(things: Schema, database: Database) -> None:
    assert await database.read(lambda c: current_revision(c, things)) is None
    await prepare_database(database, [things])
    before = await database.read(described)
    await prepare_database(database, [things])
    assert await database.read(described) == before
