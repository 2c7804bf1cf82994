"""How a training run talks to whoever started it, and how it ends early."""

from typing import Literal, Protocol

from sfumato_trainer.events import Event

Command = Literal["none", "stop", "cancel", "drain"]


class Reporter(Protocol):
    """The worker's side of the channel to the service; called from the training thread."""

    def emit(self, event: Event) -> None:
        """Report an event; returns quickly."""

    def command(self) -> Command:
        """What the run should do at the next step boundary. The first of stop and cancel wins."""

    def may_publish(self) -> bool:
        """Whether this worker still holds the run's lease."""

    def failpoint(self, name: str) -> None:
        """Called at named places, where a test can make the process die."""


class TrainingError(Exception):
    """A run that cannot go on. `code` is from a closed list, `samples` the batch's file names."""

    def __init__(
        self, code: str, message: str, *, step: int = 0, samples: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.step = step
        self.samples = samples


class EndedEarlyError(Exception):
    """Cancel or drain arrived before the first step."""

    def __init__(self, command: Command) -> None:
        super().__init__(command)
        self.command = command


class LeaseLostError(Exception):
    """Another worker owns the run by now; this one must leave no trace."""


def check_early_end(reporter: Reporter) -> None:
    """Between two items of a preparing stage. Raises EndedEarlyError.

    A stop waits: it promises an adapter, so at least one step is made first.
    """
    command = reporter.command()
    if command in ("cancel", "drain"):
        raise EndedEarlyError(command)


def check_lease(reporter: Reporter) -> None:
    """Before anything is committed. Raises LeaseLostError."""
    if not reporter.may_publish():
        raise LeaseLostError
