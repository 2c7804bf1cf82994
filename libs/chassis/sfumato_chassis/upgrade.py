"""Brings a database from an older revision to the newest, with Alembic."""

from collections.abc import Sequence

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from alembic.util.exc import CommandError
from sqlalchemy import Connection

from sfumato_chassis.schema import Schema, SchemaError


def upgrade(connection: Connection, schema: Schema, *, target: str | None = None) -> None:
    """Runs every migration that the database lacks, up to ``target``, in the caller's transaction.

    Raises:
        SchemaError: The database's revision is unknown here.
    """
    scripts = ScriptDirectory(str(schema.migrations), version_locations=[str(schema.migrations)])
    context = MigrationContext.configure(
        connection,
        opts={
            "version_table": schema.version_table,
            "fn": lambda revision, _: scripts._upgrade_revs(target or schema.revision, revision),
            "render_as_batch": True,
        },
    )
    try:
        with Operations.context(context):
            context.run_migrations()
    except CommandError as error:
        raise SchemaError(f"tables of {schema.name}: {error}") from error


def upgrade_all(connection: Connection, schemas: Sequence[Schema]) -> None:
    """Upgrades each of ``schemas``, all or none."""
    for schema in schemas:
        upgrade(connection, schema)
