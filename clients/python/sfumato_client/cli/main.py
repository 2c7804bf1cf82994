"""Entry point of the command `sfumato`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from sfumato_client.cli.exit_codes import ExitCode


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and answers its exit code (see cli/exit_codes.py).

    `serve` and `keys` do without typer and rich: the server's machine need not have them.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["serve"]:
        return serve(arguments[1:])
    if arguments[:1] == ["keys"]:
        return keys(arguments[1:])
    try:
        from sfumato_client.cli.app import run

        return run(arguments)
    except ModuleNotFoundError as error:
        if error.name not in {"typer", "rich"}:
            raise
        sys.stderr.write("the command line needs typer and rich: pip install '.[client]'\n")
        return ExitCode.INVALID
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return ExitCode.DETACHED


def serve(arguments: Sequence[str]) -> int:
    """Runs the services in this process until they are told to stop."""
    from sfumato_chassis.serve import main as serve_main

    return serve_main(arguments)


def keys(arguments: Sequence[str]) -> int:
    """Makes, lists and revokes API keys of the deployment on this machine."""
    from sfumato_chassis.keys_command import main as keys_main

    return keys_main(arguments)


if __name__ == "__main__":
    sys.exit(main())
