"""Exit codes of the command line."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the command line answers to the shell."""

    OK = 0
    # The job ended without a result: failed, cancelled or interrupted for good.
    JOB_FAILED = 1
    # The command or a field of the request is wrong, or a file here cannot be read or written.
    INVALID = 2
    NOT_FOUND = 3
    # Any other refusal, and faults of the server.
    REFUSED = 4
    # No answer from the server.
    UNREACHABLE = 5
    # Ctrl-C, as shells have it (128 + SIGINT): a job goes on.
    DETACHED = 130
    # Nobody reads the output any more: the job goes on. The same for SIGPIPE.
    OUTPUT_CLOSED = 141
