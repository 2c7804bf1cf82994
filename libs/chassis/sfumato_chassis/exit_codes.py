"""How a process of services ends, for whoever started it. As in sysexits(3)."""

NOT_FOUND = 3
"""What a command names is not there; as the client has it."""
STORAGE = 74
"""EX_IOERR: files or the database cannot be read or written."""
MISCONFIGURED = 78
"""EX_CONFIG: a setting cannot be used, or a package is missing."""
INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""
