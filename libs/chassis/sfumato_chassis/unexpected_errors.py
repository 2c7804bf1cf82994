"""What callers are told of an error that nobody foresaw: a sentence of ours and an error id.

The log has the error itself under that id. Nothing of its text or class reaches a caller.
"""

import uuid

from sfumato_chassis.disk_space import is_disk_full
from sfumato_chassis.errors import Internal, Reason, SfumatoError, disk_full
from sfumato_chassis.logging import get_logger

log = get_logger(__name__)


def report(error: Exception, during: str, **facts: str) -> SfumatoError:
    """Logs ``error`` and answers what its caller, or the job that met it, is told.

    Args:
        error: Of any class.
        during: What failed, for the log.
        facts: More for the log.

    Returns:
        DISK_FULL where there was no space, INTERNAL otherwise.
    """
    error_id = note(error, during, **facts)
    if is_disk_full(error):
        return disk_full(error_id)
    return Internal(Reason.INTERNAL, "internal error", error_id=error_id)


def note(error: Exception, during: str, **facts: str) -> str:
    """Logs ``error`` with its traceback; answers the error id under which the log has it."""
    error_id = uuid.uuid4().hex
    log.error(during, error_id=error_id, exc_info=error, **facts)
    return error_id
