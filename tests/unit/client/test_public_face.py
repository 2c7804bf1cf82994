"""What `import sfumato_client` gives, and what it must not drag in."""

from __future__ import annotations

import subprocess
import sys

import sfumato_client

FACE = [
    "Aborted",
    "Addresses",
    "AlreadyExists",
    "Attached",
    "Blobs",
    "BlockingClient",
    "Cancelled",
    "Client",
    "Connection",
    "ContractViolated",
    "Cursor",
    "DataLoss",
    "Datasets",
    "DeadlineExceeded",
    "Event",
    "FailedPrecondition",
    "FieldViolation",
    "Finished",
    "Generator",
    "InternalError",
    "InvalidArgument",
    "NotFound",
    "OutOfRange",
    "PermissionDenied",
    "Reconnecting",
    "ResourceExhausted",
    "RetryPolicy",
    "SfumatoError",
    "Snapshot",
    "Timing",
    "Tls",
    "Trainer",
    "TransportLost",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "WatchItem",
    "has_ended",
    "new_request_id",
]

HEAVY = {
    "PIL",
    "alembic",
    "diffusers",
    "numpy",
    "rich",
    "sfumato_chassis",
    "sfumato_diffusion",
    "sqlalchemy",
    "structlog",
    "torch",
    "transformers",
    "typer",
}


def test_names() -> None:
    assert sorted(sfumato_client.__all__) == sorted(FACE)
    assert all(hasattr(sfumato_client, name) for name in FACE)


def packages_after(statement: str) -> set[str]:
    """Top-level packages in a fresh interpreter after a statement."""
    program = f"{statement}; import sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(finished.stdout.split())


def test_library_is_light() -> None:
    assert packages_after("import sfumato_client") & HEAVY == set()


def test_entry_point_is_light_until_it_knows_the_command() -> None:
    assert packages_after("import sfumato_client.cli.main") & HEAVY == set()


def test_command_line_needs_neither_server_nor_models() -> None:
    assert packages_after("import sfumato_client.cli.app") & HEAVY == {"rich", "typer"}
