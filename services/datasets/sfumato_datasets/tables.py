"""The datasets service's tables."""

from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    false,
    text,
)

from sfumato_chassis.database import Timestamp

SERVICE: Final = "datasets"

metadata = MetaData()

datasets = Table(
    "datasets_datasets",
    metadata,
    Column("owner", String(128), primary_key=True),
    Column("name", String(128), primary_key=True),
    Column("etag", String(64), nullable=False),
    Column("latest_number", BigInteger, nullable=False),
    Column("deletion_pending", Boolean, nullable=False, server_default=false()),
    Column("create_time", Timestamp, nullable=False),
    Column("update_time", Timestamp, nullable=False),
)

versions = Table(
    "datasets_versions",
    metadata,
    Column("owner", String(128), primary_key=True),
    Column("dataset", String(128), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", String(71), nullable=False),
    Column("num_samples", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("num_captioned", BigInteger, nullable=False),
    Column("statistics_digest", String(71), nullable=False),
    Column("duplicates_digest", String(71), nullable=False),
    # Samples that are not as in the version before.
    Column("num_changed", BigInteger, nullable=False),
    # The import or the edit that made it.
    Column("created_by", String(64), nullable=False),
    Column("deletion_pending", Boolean, nullable=False, server_default=false()),
    Column("create_time", Timestamp, nullable=False),
    ForeignKeyConstraint(
        ["owner", "dataset"], ["datasets_datasets.owner", "datasets_datasets.name"]
    ),
    Index("datasets_versions_by_origin", "created_by", unique=True),
)

pins = Table(
    "datasets_pins",
    metadata,
    Column("owner", String(128), primary_key=True),
    Column("dataset", String(128), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("holder", String(128), primary_key=True),
    Column("expire_time", Timestamp, nullable=False),
)

imports = Table(
    "datasets_imports",
    metadata,
    Column("job", String(64), primary_key=True),
    Column("owner", String(128), nullable=False),
    Column("dataset", String(128), nullable=False),
    # Of the dataset's lease; a later holder has a higher one.
    Column("fence", BigInteger, nullable=False, server_default=text("0")),
    Column("mode", String(16), nullable=False),
    Column("refused_files", String(8), nullable=False),
    Column("caption_column", String(64)),
    Column("all_captions", Boolean, nullable=False, server_default=false()),
    Column("source", JSON, nullable=False),
    Column("num_files_done", BigInteger, nullable=False),
    Column("num_files", BigInteger, nullable=False),
    Column("num_bytes_done", BigInteger, nullable=False),
    Column("num_bytes_fetched", BigInteger, nullable=False, server_default=text("0")),
    Column("num_bytes_to_fetch", BigInteger, nullable=False, server_default=text("0")),
    Column("num_notes", BigInteger, nullable=False),
    Column("version_number", BigInteger),
)

images = Table(
    "datasets_images",
    metadata,
    Column("digest", String(71), primary_key=True),
    # Another version of the reader may see other pixels.
    Column("reader_version", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("media_type", String(32), nullable=False),
    Column("width", Integer, nullable=False),
    Column("height", Integer, nullable=False),
    Column("crc32", BigInteger, nullable=False),
    # 16 hexadecimal digits: not every database has unsigned integers of 64 bits.
    Column("perceptual_hash", String(16), nullable=False),
    Column("previews_digest", String(71), nullable=False),
    Column("previews", JSON, nullable=False),
    Column("notes", JSON, nullable=False),
)
