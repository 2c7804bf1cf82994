"""`sfumato generate` and `sfumato gallery`: pictures."""

from __future__ import annotations

import mimetypes
import re
from pathlib import Path
from typing import Annotated

import typer

from sfumato.generator.v1 import generator_pb2
from sfumato_client.calls import new_request_id
from sfumato_client.cli.exit_codes import ExitCode
from sfumato_client.cli.fields import FieldOptions
from sfumato_client.cli.files import check_file_writable, check_folder_writable
from sfumato_client.cli.following import (
    JobView,
    Milestone,
    Position,
    Sight,
    describe_interrupted,
    describe_queued,
    describe_started,
    follow,
    print_result,
)
from sfumato_client.cli.session import Session, session_of
from sfumato_client.cli.sources import SourceError, model_source, split_weight, weighted_adapter
from sfumato_client.cli.text import clock_time, counted, moment
from sfumato_client.cli.validation import check
from sfumato_client.client import Client
from sfumato_client.errors import violated

CONFIGURATION = FieldOptions(
    message_type=generator_pb2.GenerationConfiguration,
    leave_out=("prompt",),
    names={"negative_prompt": "--negative"},
)

gallery = typer.Typer(no_args_is_help=True, help="The pictures that were made.")

_IMAGE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


@CONFIGURATION.of_parameter("configuration")
def generate(
    context: typer.Context,
    configuration: generator_pb2.GenerationConfiguration,
    prompt: Annotated[str, typer.Argument(help="What to make.")],
    model: Annotated[str, typer.Option(help="Base model: a Hub id, or a folder on the server.")],
    out: Annotated[Path, typer.Option(help="Folder for the pictures; made if need be.")],
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub id.")] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE[:WEIGHT]",
            help="A run or an adapter's name; may be given several times.",
        ),
    ] = None,
    validate_only: Annotated[
        bool,
        typer.Option("--validate-only", help="Print the resolved configuration; create nothing."),
    ] = False,
    request_id: Annotated[
        str | None, typer.Option(help="UUID; the same one, the same job.")
    ] = None,
) -> None:
    """Make pictures and save them in a folder."""
    session = session_of(context)
    if not all(split_weight(source)[0] for source in adapter or ()):
        raise typer.BadParameter("must name a run or an adapter", param_hint="--adapter")
    check_folder_writable(out)
    configuration.prompt = prompt
    configuration.text_to_image.SetInParent()
    try:
        configuration.model.CopyFrom(model_source(model, revision=revision))
    except SourceError as error:
        raise typer.BadParameter(str(error), param_hint="--model") from error
    request = generator_pb2.CreateGenerationRequest(
        request_id=request_id or new_request_id(),
        validate_only=validate_only,
        configuration=configuration,
    )

    async def work(client: Client) -> ExitCode:
        for source in adapter or ():
            request.configuration.adapters.append(await weighted_adapter(source, client))
        check(request)
        session.reattach = session.repeated_with(request.request_id)
        response = await client.generator.create_generation(request)
        if validate_only:
            session.print_message(response.generation.resolved_configuration)
            return ExitCode.OK
        if not session.as_json:
            session.print(f"generation {response.generation.name}")
        out.mkdir(parents=True, exist_ok=True)
        return await _watch_and_save(session, client, response.generation.name, out)

    session.run(work)


async def _watch_and_save(session: Session, client: Client, name: str, folder: Path) -> ExitCode:
    """Saves each picture as soon as it is there, so that a later failure loses none."""
    saved: set[str] = set()

    async def save(image: generator_pb2.Image) -> None:
        if image.name not in saved:
            path = folder / image_file_name(image)
            await client.generator.blobs.download(image.file.digest, path)
            saved.add(image.name)
            if not session.as_json:
                session.print(f"{path} (seed {image.seed})")

    async def save_event(event: generator_pb2.GenerationEvent) -> None:
        if event.WhichOneof("event") == "image_saved":
            await save(event.image_saved)

    final = await follow(
        session,
        VIEW,
        client.generator.watch_generation,
        name,
        on_event=save_event,
    )
    for image in final.images:
        await save(image)
    return print_result(session, VIEW, final)


def image_file_name(image: generator_pb2.Image) -> str:
    """A file name for an image; the name that a server sends is not trusted to be one."""
    if _IMAGE_NAME.fullmatch(image.name) is None:
        raise violated(f"{image.name!r} is not a name of an image")
    return image.name + (mimetypes.guess_extension(image.file.media_type) or ".bin")


@gallery.command("list")
def list_images(
    context: typer.Context,
    generation: Annotated[str | None, typer.Option(help="Only the pictures of this one.")] = None,
) -> None:
    """List the pictures, newest first."""
    session = session_of(context)

    async def work(client: Client) -> None:
        images = [image async for image in client.generator.list_images(generation=generation)]
        if session.as_json:
            for image in images:
                session.print_message(image)
            return
        rows = [
            (
                image.name,
                f"{image.width}x{image.height}",
                str(image.seed),
                moment(image.create_time),
                image.configuration.prompt,
            )
            for image in images
        ]
        session.print_table(("name", "size", "seed", "made", "prompt"), rows)

    session.run(work)


@gallery.command()
def get(
    context: typer.Context,
    image: Annotated[str, typer.Argument(help="The image's name.")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
) -> None:
    """Fetch a picture."""
    session = session_of(context)
    check_file_writable(out)

    async def work(client: Client) -> None:
        record = await client.generator.get_image(image)
        await client.generator.blobs.download(record.file.digest, out)
        if session.as_json:
            session.print_message(record)
        else:
            session.print(str(out))

    session.run(work)


def describe_event(event: generator_pb2.GenerationEvent) -> Sight | None:
    """What one event of a generation looks like."""
    kind = event.WhichOneof("event")
    match kind:
        case "queued":
            return describe_queued(event.queued)
        case "started":
            return describe_started(event.started)
        case "loading":
            return Position(stage=f"loading {event.loading.component}", done=0, total=None)
        case "loaded":
            return Milestone(
                text="the model was loaded already" if event.loaded.resident else "model loaded"
            )
        case "step":
            return _position(event.step)
        case "interrupted":
            return describe_interrupted(event.interrupted)
        case "cancel_requested":
            return Milestone(text="cancelling")
        case "image_saved" | "succeeded" | "failed" | "cancelled" | None:
            return None


def _position(progress: generator_pb2.GenerationProgress) -> Position:
    return Position(
        stage=f"image {progress.image} of {progress.num_images}",
        done=progress.step,
        total=progress.num_steps or None,
        facts=f"{clock_time(progress.eta)} left" if progress.HasField("eta") else "",
    )


VIEW: JobView[generator_pb2.Generation, generator_pb2.GenerationEvent] = JobView(
    describe_event=describe_event,
    describe_resource=lambda generation: _position(generation.progress),
    describe_success=lambda generation: (
        f"{generation.name}: {counted(len(generation.images), 'image')}"
    ),
)
