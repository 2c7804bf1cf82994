"""`sfumato train`: training runs."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from sfumato.job.v1 import job_pb2
from sfumato.trainer.v1 import configuration_pb2, trainer_pb2
from sfumato_client.calls import new_request_id
from sfumato_client.cli.exit_codes import ExitCode
from sfumato_client.cli.fields import FieldOptions
from sfumato_client.cli.following import (
    JobView,
    Milestone,
    Position,
    Sight,
    describe_interrupted,
    describe_queued,
    describe_started,
)
from sfumato_client.cli.session import Session, session_of
from sfumato_client.cli.sources import SourceError, model_source
from sfumato_client.cli.text import clock_time, counted, file_size, moment, state_name
from sfumato_client.cli.validation import check
from sfumato_client.cli.watching import WatchCommand
from sfumato_client.client import Client

app = typer.Typer(no_args_is_help=True, help="Train adapters; follow and end training runs.")

CONFIGURATION = FieldOptions(
    message_type=configuration_pb2.TrainingConfiguration,
    leave_out=("base_model", "dataset", "flow_shift"),
    names={"target_modules": "--target-module"},
)

RunName = Annotated[str, typer.Argument(metavar="RUN", help="The run's name.")]


@app.command()
@CONFIGURATION.of_parameter("configuration")
def start(
    context: typer.Context,
    configuration: configuration_pb2.TrainingConfiguration,
    dataset: Annotated[str, typer.Argument(help="The dataset to train on.")],
    model: Annotated[str, typer.Option(help="Base model: a Hub id, or a folder on the server.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub id.")] = None,
    flow_shift: Annotated[
        str | None, typer.Option(help="Shift of the noise schedule: `auto` or a number above 0.")
    ] = None,
    display_name: Annotated[str, typer.Option(help="Free text for people.")] = "",
    detach: Annotated[bool, typer.Option("--detach", help="Do not wait for the end.")] = False,
    validate_only: Annotated[
        bool,
        typer.Option("--validate-only", help="Print the resolved configuration; create nothing."),
    ] = False,
    request_id: Annotated[
        str | None, typer.Option(help="UUID; the same one, the same job.")
    ] = None,
) -> None:
    """Train an adapter. What is not given takes the default of the model's family."""
    session = session_of(context)
    configuration.dataset = dataset
    try:
        configuration.base_model.CopyFrom(model_source(model, revision=revision))
    except SourceError as error:
        raise typer.BadParameter(str(error), param_hint="--model") from error
    if flow_shift is not None:
        configuration.flow_shift.CopyFrom(parse_flow_shift(flow_shift))
    request = trainer_pb2.CreateTrainingRunRequest(
        request_id=request_id or new_request_id(),
        validate_only=validate_only,
        display_name=display_name,
        configuration=configuration,
    )

    async def work(client: Client) -> ExitCode:
        check(request)
        session.reattach = session.repeated_with(request.request_id)
        response = await client.trainer.create_training_run(request)
        if validate_only:
            session.print_message(response.training_run.resolved_configuration)
            return ExitCode.OK
        if detach:
            session.print_message(response.training_run)
            return ExitCode.OK
        if not session.as_json:
            session.print(f"training run {response.training_run.name}")
        return await WATCH.attend(session, client, response.training_run.name)

    session.run(work)


@app.command()
def stop(context: typer.Context, run: RunName) -> None:
    """End a run early with a result: it saves a checkpoint and publishes its adapter."""
    session = session_of(context)

    async def work(client: Client) -> None:
        _print_run(session, await client.trainer.stop_training_run(run))

    session.run(work)


@app.command()
def cancel(context: typer.Context, run: RunName) -> None:
    """End a run without a result. Its checkpoints stay."""
    session = session_of(context)

    async def work(client: Client) -> None:
        _print_run(session, await client.trainer.cancel_training_run(run))

    session.run(work)


@app.command("list")
def list_runs(context: typer.Context) -> None:
    """List the runs, newest first."""
    session = session_of(context)

    async def work(client: Client) -> None:
        runs = [run async for run in client.trainer.list_training_runs()]
        if session.as_json:
            for run in runs:
                session.print_message(run)
            return
        rows = [
            (
                run.name,
                run.display_name,
                state_name(run.status.state),
                f"{run.progress.step}/{run.progress.total_steps}",
                run.dataset.name,
                moment(run.status.create_time),
            )
            for run in runs
        ]
        session.print_table(("name", "display name", "state", "step", "dataset", "created"), rows)

    session.run(work)


@app.command()
def show(context: typer.Context, run: RunName) -> None:
    """Show everything about a run."""
    session = session_of(context)

    async def work(client: Client) -> None:
        session.print_message(await client.trainer.get_training_run(run))

    session.run(work)


def parse_flow_shift(text: str) -> configuration_pb2.FlowShift:
    """`auto` or a number."""
    if text == "auto":
        return configuration_pb2.FlowShift(automatic=configuration_pb2.AutomaticShift())
    try:
        shift = float(text)
    except ValueError as error:
        raise typer.BadParameter("must be `auto` or a number", param_hint="--flow-shift") from error
    return configuration_pb2.FlowShift(shift=shift)


def _print_run(session: Session, run: trainer_pb2.TrainingRun) -> None:
    if session.as_json:
        session.print_message(run)
    else:
        session.print(f"{run.name} is {state_name(run.status.state)}")


def describe_event(event: trainer_pb2.TrainingRunEvent) -> Sight | None:
    """What one event of a run looks like."""
    kind = event.WhichOneof("event")
    match kind:
        case "queued":
            return describe_queued(event.queued)
        case "started":
            return describe_started(event.started)
        case "preparing":
            return _preparing(event.preparing)
        case "loaded":
            return Milestone(text=_loaded(event.loaded))
        case "resumed":
            return Milestone(text=_resumed(event.resumed))
        case "progress":
            return _position(event.progress)
        case "checkpoint_saved":
            saved = event.checkpoint_saved
            return Milestone(text=f"checkpoint at step {saved.step}, {file_size(saved.size_bytes)}")
        case "checkpoint_failed":
            failed = event.checkpoint_failed
            return Milestone(text=f"no checkpoint at step {failed.step}: {failed.message}")
        case "warning":
            return Milestone(text=f"{event.warning.code}: {event.warning.message}")
        case "interrupted":
            return describe_interrupted(event.interrupted)
        case "stop_requested":
            return Milestone(text="stopping after this step")
        case "cancel_requested":
            return Milestone(text="cancelling")
        case "succeeded" | "failed" | "cancelled" | None:
            return None


def _preparing(preparing: trainer_pb2.RunPreparing) -> Position:
    return Position(
        stage=preparing.stage.replace("_", " "),
        done=preparing.done,
        total=preparing.total or None,
    )


def _loaded(loaded: trainer_pb2.RunLoaded) -> str:
    hits = loaded.latents.hits + loaded.texts.hits
    total = hits + loaded.latents.misses + loaded.texts.misses
    return f"model loaded; {hits} of {total} latents and texts were in the conditioning cache"


def _resumed(resumed: trainer_pb2.RunResumed) -> str:
    exactness = "" if resumed.bitwise else "; the result will not be bitwise the same"
    damaged = ", ".join(resumed.damaged_checkpoints)
    passed_over = f"; damaged and passed over: {damaged}" if damaged else ""
    return f"goes on from step {resumed.step}{exactness}{passed_over}"


def _position(progress: trainer_pb2.TrainingProgress) -> Position:
    facts = []
    if progress.step > 0:
        facts.append(f"loss {progress.loss:.4f}")
        facts.append(f"lr {progress.learning_rate:.3g}")
    if progress.HasField("eta"):
        facts.append(f"{clock_time(progress.eta)} left")
    return Position(
        stage="training",
        done=progress.step,
        total=progress.total_steps or None,
        facts="  ".join(facts),
    )


def describe_success(run: trainer_pb2.TrainingRun) -> str:
    """The last line of a run with a result."""
    adapter = run.adapter
    early = " (stopped early)" if run.stopped_early else ""
    loss = run.progress.average_loss
    quality = f", average loss {loss:.4f}" if math.isfinite(loss) else ""
    return (
        f"{run.name}: adapter {adapter.name} after {counted(adapter.steps, 'step')}{early}{quality}"
    )


VIEW = JobView(
    describe_event=describe_event,
    describe_resource=lambda run: (
        _position(run.progress) if run.status.state == job_pb2.JOB_STATE_RUNNING else None
    ),
    describe_success=describe_success,
)

WATCH = WatchCommand(
    group="train",
    summary="Follow a run from its first event.",
    view=VIEW,
    method=lambda client: client.trainer.watch_training_run,
)
WATCH.add_to(app)
