"""How the command line prints what went wrong, and with which exit code it ends."""

from __future__ import annotations

import json
from typing import TextIO

from sfumato.job.v1 import errors_pb2, job_pb2
from sfumato_client.cli.exit_codes import ExitCode
from sfumato_client.cli.text import printable
from sfumato_client.errors import InvalidArgument, NotFound, SfumatoError, TransportLost


def exit_code_of(error: SfumatoError) -> ExitCode:
    """The code for an error of the client."""
    if isinstance(error, TransportLost):
        return ExitCode.UNREACHABLE
    if isinstance(error, InvalidArgument):
        return ExitCode.INVALID
    if isinstance(error, NotFound):
        return ExitCode.NOT_FOUND
    return ExitCode.REFUSED


def print_error(error: SfumatoError, file: TextIO, *, as_json: bool) -> None:
    """Prints reason, message, fields and details; one JSON object with `as_json`."""
    if as_json:
        failure = {
            "code": error.code.name,
            "reason": error.reason,
            "message": error.message,
            "fieldViolations": [
                {"field": refused.field, "description": refused.description}
                for refused in error.field_violations
            ],
            "details": dict(error.details),
            "errorId": error.error_id,
        }
        file.write(json.dumps({"error": failure}, ensure_ascii=False) + "\n")
        return
    lines = [f"{error.reason or error.code.name}: {error.message}"]
    if isinstance(error, TransportLost):
        lines = [
            "UNREACHABLE: no answer; does `sfumato serve` run there?",
            f"  {error.message}",
        ]
    refusals = [f"{refused.field}: {refused.description}" for refused in error.field_violations]
    # The message of a single refused field repeats it.
    lines += [f"  {refusal}" for refusal in refusals if refusal != error.message]
    lines += [f"  {key}: {value}" for key, value in sorted(error.details.items())]
    if error.retry_delay_seconds is not None:
        lines.append(f"  try again in {error.retry_delay_seconds:g} s")
    file.write("".join(printable(line) + "\n" for line in lines))


def describe_local_error(error: OSError | UnicodeEncodeError) -> str:
    """A line that says which file, or which text, of this machine is at fault."""
    if isinstance(error, UnicodeEncodeError):
        return printable(f"not text in UTF-8: {error.object[:200]}")
    reason = error.strerror or str(error)
    return printable(reason if error.filename is None else f"{error.filename}: {reason}")


def exit_code_of_job(status: job_pb2.JobStatus) -> ExitCode:
    """The code for a job that has ended."""
    if status.state == job_pb2.JOB_STATE_SUCCEEDED:
        return ExitCode.OK
    return ExitCode.JOB_FAILED


def describe_job_error(error: errors_pb2.JobError) -> list[str]:
    """Lines that say why a job failed."""
    reason = errors_pb2.ErrorReason.Name(error.reason).removeprefix("ERROR_REASON_")
    lines = [f"{reason}: {error.message}"]
    lines += [f"  {key}: {value}" for key, value in sorted(error.details.items())]
    if error.error_id:
        lines.append(f"  error_id: {error.error_id}")
    return lines
