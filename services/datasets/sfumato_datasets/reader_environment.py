"""What a process that reads files of strangers is told of the service's environment: no token, no key."""

import os
from typing import Final

_NEEDED: Final = ("HOME", "LANG", "PATH", "TMPDIR", "TZ", "VIRTUAL_ENV")
_NEEDED_PREFIXES: Final = ("COV", "LC_", "LD_", "PYTHON")


def reader_environment(**settings: str) -> dict[str, str]:
    """Where Python and its libraries are found, one thread for each of these, and `settings`."""
    needed = {
        name: value
        for name, value in os.environ.items()
        if name in _NEEDED or name.startswith(_NEEDED_PREFIXES)
    }
    # A BLAS reserves address space, which is limited, for each of its threads.
    return {**needed, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **settings}
