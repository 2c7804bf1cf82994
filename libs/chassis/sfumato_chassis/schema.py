"""Tables of a process and the revisions that lead to them.

The chassis and each service have tables, migrations and a version table of their own. A fresh database
is made from the tables at once, which needs no Alembic; a test proves that the migrations lead to the
same tables.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from sqlalchemy import Connection, MetaData, inspect, text

from sfumato_chassis import tables
from sfumato_chassis.config import ConfigError
from sfumato_chassis.database import Database


class SchemaError(ConfigError):
    """The database belongs to a newer version of this program."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    """One owner's tables.

    Attributes:
        name: ``chassis`` or the service; the prefix of its tables.
        metadata: The tables as they are now.
        package: The package that holds the migrations, in a subpackage ``migrations``.
        revision: The newest migration, which leads to ``metadata``.
    """

    name: str
    metadata: MetaData
    package: str
    revision: str

    @property
    def version_table(self) -> str:
        """Where the revision of the database is written."""
        return f"{self.name}_schema_version"

    @property
    def migrations(self) -> Path:
        """The folder of the migrations."""
        module = import_module(self.package)
        assert module.__file__ is not None
        return Path(module.__file__).parent / "migrations"


CHASSIS_SCHEMA = Schema(
    name="chassis", metadata=tables.metadata, package="sfumato_chassis", revision="0004"
)


async def prepare_database(database: Database, schemas: Sequence[Schema]) -> None:
    """Makes or upgrades the tables of ``schemas``.

    Raises:
        SchemaError: The database was written by a newer version.
    """

    def work(connection: Connection) -> list[Schema]:
        behind = []
        for schema in schemas:
            current = current_revision(connection, schema)
            if current is None:
                create_tables(connection, schema)
            elif current != schema.revision:
                behind.append(schema)
        return behind

    behind = await database.write(work)
    if behind:
        # Alembic costs more time than the rest of a start together, so only an upgrade loads it.
        from sfumato_chassis.upgrade import upgrade_all

        await database.write(lambda connection: upgrade_all(connection, behind))


def current_revision(connection: Connection, schema: Schema) -> str | None:
    """The revision that the database's tables have; None before they are made."""
    if not inspect(connection).has_table(schema.version_table):
        return None
    statement = text(f"SELECT version_num FROM {schema.version_table}")
    return str(connection.execute(statement).scalar_one())


def create_tables(connection: Connection, schema: Schema) -> None:
    """Makes the tables as they are now and writes the revision down."""
    schema.metadata.create_all(connection)
    connection.execute(
        text(f"CREATE TABLE {schema.version_table} (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
    )
    connection.execute(
        text(f"INSERT INTO {schema.version_table} VALUES (:revision)"),
        {"revision": schema.revision},
    )
