"""Writes the migration that leads from a schema's newest revision to its tables as they are now.

Usage: python tools/make_migration.py SCHEMA MESSAGE, where SCHEMA is chassis, datasets, trainer or generator.
Read the result before you commit it, and raise the schema's revision.
"""

import re
import sys
from importlib import import_module
from pathlib import Path

from alembic.autogenerate import produce_migrations, render_python_code
from alembic.migration import MigrationContext
from sqlalchemy import create_engine

from sfumato_chassis.schema import CHASSIS_SCHEMA, Schema
from sfumato_chassis.upgrade import upgrade

TEMPLATE = '''"""{message}"""

import sqlalchemy as sa
from alembic import op

import sfumato_chassis.database

revision = "{revision}"
down_revision = {previous!r}
branch_labels = None
depends_on = None


def upgrade() -> None:
    {body}
'''


def schema_named(name: str) -> Schema:
    """The schema of the chassis or of a service."""
    if name == "chassis":
        return CHASSIS_SCHEMA
    schema: Schema = import_module(f"sfumato_{name}.app").SCHEMA
    return schema


def main(name: str, message: str) -> None:
    schema = schema_named(name)
    numbers = sorted(int(path.name[:4]) for path in schema.migrations.glob("[0-9]*.py"))
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        if numbers:
            upgrade(connection, schema, target=f"{numbers[-1]:04d}")
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": schema.version_table,
                "render_as_batch": True,
                "user_module_prefix": "sfumato_chassis.database.",
            },
        )
        script = produce_migrations(context, schema.metadata)
        assert script.upgrade_ops is not None
        body = render_python_code(
            script.upgrade_ops, render_as_batch=True, user_module_prefix="sfumato_chassis.database."
        )
    revision = f"{(numbers[-1] if numbers else 0) + 1:04d}"
    slug = re.sub(r"[^a-z0-9]+", "_", message.lower()).strip("_")
    path = Path(schema.migrations) / f"{revision}_{slug}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        TEMPLATE.format(
            message=message,
            revision=revision,
            previous=f"{numbers[-1]:04d}" if numbers else None,
            body=body,
        )
    )
    print(path)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
