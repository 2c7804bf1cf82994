"""The chassis's tables. Services have their own, with their own prefix; none reads another's."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

from sfumato_chassis.database import Timestamp

metadata = MetaData()

jobs = Table(
    "chassis_jobs",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("ordinal", BigInteger, nullable=False, unique=True),
    Column("kind", String(32), nullable=False),
    Column("owner", String(128), nullable=False),
    Column("state", String(16), nullable=False),
    Column("interruption_policy", String(8), nullable=False),
    Column("failure", JSON(none_as_null=True)),
    Column("log_id", String(64), nullable=False),
    Column("first_sequence", BigInteger, nullable=False),
    Column("last_sequence", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("worker_local_number", BigInteger, nullable=False),
    Column("queue_position", Integer, nullable=False),
    Column("create_time", Timestamp, nullable=False),
    Column("start_time", Timestamp),
    Column("end_time", Timestamp),
    Column("expire_time", Timestamp),
    Index("chassis_jobs_by_kind_and_state", "kind", "state", "ordinal"),
    Index("chassis_jobs_by_owner", "kind", "owner", "ordinal"),
)

job_events = Table(
    "chassis_job_events",
    metadata,
    Column(
        "job",
        String(64),
        ForeignKey("chassis_jobs.name", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("time", Timestamp, nullable=False),
    Column("kind", String(32), nullable=False),
    Column("data", JSON, nullable=False),
    Index("chassis_job_events_by_kind", "job", "kind", "sequence"),
)

request_ids = Table(
    "chassis_request_ids",
    metadata,
    Column("principal", String(128), primary_key=True),
    Column("method", String(128), primary_key=True),
    Column("request_id", String(36), primary_key=True),
    Column("fingerprint", LargeBinary(32), nullable=False),
    Column("resource", String(64), nullable=False, index=True),
    Column("create_time", Timestamp, nullable=False),
    # When what it made was removed; the row is a tombstone from then on.
    Column("expire_time", Timestamp),
    # Whether its owner removed it; otherwise its retention had passed.
    Column("deleted", Boolean),
)

leases = Table(
    "chassis_leases",
    metadata,
    Column("key", String(256), primary_key=True),
    Column("holder", String(128), nullable=False),
    Column("purpose", String(32), nullable=False),
    Column("fence", BigInteger, nullable=False),
    Column("expire_time", Timestamp, nullable=False),
    # Who waits for it; a holder that is idle gives way.
    Column("wanted_by", String(128)),
)

workers = Table(
    "chassis_workers",
    metadata,
    Column("worker_id", String(64), primary_key=True),
    Column("service", String(32), nullable=False),
    Column("job", String(64)),
    Column("fence", BigInteger, nullable=False),
    Column("token_sha256", LargeBinary(32), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("start_ticks", BigInteger),
    Column("create_time", Timestamp, nullable=False),
)

blobs = Table(
    "chassis_blobs",
    metadata,
    Column("digest", String(71), primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("media_type", String(100), nullable=False),
    # The collector counts 24 h from here for a blob without references.
    Column("touch_time", Timestamp, nullable=False),
)

blob_references = Table(
    "chassis_blob_references",
    metadata,
    Column("service", String(32), primary_key=True),
    Column("resource", String(128), primary_key=True),
    Column("digest", String(71), primary_key=True, index=True),
)

uploads = Table(
    "chassis_uploads",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("owner", String(128), nullable=False),
    Column("digest", String(71), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("media_type", String(100), nullable=False),
    Column("committed_size_bytes", BigInteger, nullable=False),
    Column("complete", Boolean, nullable=False),
    Column("create_time", Timestamp, nullable=False),
    Column("expire_time", Timestamp, nullable=False),
)

api_keys = Table(
    "chassis_api_keys",
    metadata,
    Column("key_id", String(32), primary_key=True),
    Column("principal", String(128), nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("key_sha256", LargeBinary(32), nullable=False),
    Column("create_time", Timestamp, nullable=False),
    Column("expire_time", Timestamp),
    Column("revoke_time", Timestamp),
)

settings = Table(
    "chassis_settings",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("value", Text, nullable=False),
    Column("update_time", Timestamp, nullable=False),
)
