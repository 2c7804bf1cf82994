"""Keeps deployments apart that would use one device of this host.

Who uses a device, and until when, is a row of the deployment's database (:mod:`sfumato_chassis.leases`).
Two databases know nothing of each other, so a process that uses a device holds a lock file which names
its database, and hands it on to its workers: it is held for as long as one of them lives. A process with
another database is refused at its start. A CPU is everybody's and need not be claimed.

The files lie with the user, so that other users, and containers with a home of their own, are not seen.
"""

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from sfumato_chassis.config import ConfigError
from sfumato_chassis.leases import device_key


def claims_folder() -> Path:
    """Where the claims of this user's processes lie: the user's folder of state, as XDG has it."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "sfumato"


def claim_device(folder: Path, device: str, database: Path) -> IO[str]:
    """Claims a device for a database until every process has closed the answered file.

    Args:
        folder: Where claims lie.
        device: ``cuda:<n>``.
        database: Its real file.

    Raises:
        ConfigError: A process with another database uses the device.
        OSError: The claim cannot be written.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    claim = (folder / f"{device_key(device)}.claim").open("a+", encoding="utf-8")
    try:
        with suppress(BlockingIOError):
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            claim.truncate(0)
            claim.write(str(database))
            claim.flush()
        # To share a lock that one had alone lets it go for a moment, so what stands there is read after.
        fcntl.flock(claim, fcntl.LOCK_SH)
        claim.seek(0)
        holder = claim.read()
        if holder != str(database):
            raise ConfigError(
                f"device {device}: the services that use it on one host share a database, "
                f"and it is in use with {holder}"
            )
    except BaseException:
        claim.close()
        raise
    return claim
