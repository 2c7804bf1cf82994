"""`sfumato datasets edit` and `delete`: changes of captions and tags, removals."""

from __future__ import annotations

from typing import Annotated

import typer

from sfumato.datasets.v1 import datasets_pb2, editing_pb2, selection_pb2
from sfumato_client.calls import new_request_id
from sfumato_client.cli.session import Session, session_of
from sfumato_client.cli.text import counted
from sfumato_client.cli.validation import check
from sfumato_client.client import Client

app = typer.Typer(
    no_args_is_help=True,
    help="Change captions and tags, or remove samples. Each command makes one new version.",
)

Name = Annotated[str, typer.Argument(help="The dataset.")]
Files = Annotated[
    list[str] | None, typer.Option("--file", help="Only this sample; repeat for more.")
]
Contains = Annotated[str, typer.Option(help="Only captions with this text.")]
Tagged = Annotated[str, typer.Option("--tagged", help="Only samples with this tag.")]
Missing = Annotated[bool, typer.Option("--missing", help="Only samples without a caption.")]
Everything = Annotated[bool, typer.Option("--all", help="All samples.")]
ValidateOnly = Annotated[
    bool, typer.Option("--validate-only", help="Say what would change, but change nothing.")
]
ETag = Annotated[
    str | None, typer.Option(help="Of the dataset as you read it; default as it is now.")
]
Tags = Annotated[list[str], typer.Argument(help="The tags.")]


def selection(
    files: list[str] | None, contains: str, tagged: str, missing: bool, everything: bool
) -> selection_pb2.SampleSelection:
    """The samples that the options name; none of them must not mean all."""
    fitting = selection_pb2.SampleFilter(
        caption_contains=contains, tag=tagged, missing_caption=missing
    )
    has_filter = fitting != selection_pb2.SampleFilter()
    if sum([bool(files), has_filter, everything]) != 1:
        raise typer.BadParameter(
            "say which samples: --file, or --contains, --tagged, --missing, or --all"
        )
    if files:
        return selection_pb2.SampleSelection(names=selection_pb2.SampleNames(file_names=files))
    if everything:
        return selection_pb2.SampleSelection(all=selection_pb2.AllSamples())
    return selection_pb2.SampleSelection(filter=fitting)


def send(
    session: Session, name: str, edit: editing_pb2.Edit, *, etag: str | None, validate_only: bool
) -> None:
    """Asks for the edit and prints what came of it."""

    async def work(client: Client) -> None:
        expected = etag or (await client.datasets.get_dataset(name)).etag
        request = datasets_pb2.EditDatasetRequest(
            request_id=new_request_id(),
            validate_only=validate_only,
            dataset=name,
            etag=expected,
            edits=[edit],
        )
        check(request)
        answer = await client.datasets.edit_dataset(request)
        if session.as_json:
            session.print_message(answer)
            return
        changed = counted(answer.num_samples_changed, "sample")
        verb = "would change" if validate_only else "changed"
        session.print(f"{name}, version {answer.version.number}: {changed} {verb}")

    session.run(work)


@app.command()
def caption(
    context: typer.Context,
    name: Name,
    text: Annotated[str, typer.Argument(help="The caption; empty: meant to have none.")],
    file: Files = None,
    contains: Contains = "",
    tagged: Tagged = "",
    missing: Missing = False,
    everything: Everything = False,
    validate_only: ValidateOnly = False,
    etag: ETag = None,
) -> None:
    """Give samples a caption."""
    edit = editing_pb2.Edit(
        samples=selection(file, contains, tagged, missing, everything),
        set_caption=editing_pb2.SetCaption(caption=text),
    )
    send(session_of(context), name, edit, etag=etag, validate_only=validate_only)


@app.command()
def replace(
    context: typer.Context,
    name: Name,
    find: Annotated[str, typer.Argument(help="Taken literally.")],
    replacement: Annotated[str, typer.Argument()],
    file: Files = None,
    contains: Contains = "",
    tagged: Tagged = "",
    everything: Everything = False,
    validate_only: ValidateOnly = False,
    etag: ETag = None,
) -> None:
    """Replace text in captions."""
    edit = editing_pb2.Edit(
        samples=selection(file, contains, tagged, False, everything),
        replace_text=editing_pb2.ReplaceText(find=find, replacement=replacement),
    )
    send(session_of(context), name, edit, etag=etag, validate_only=validate_only)


@app.command()
def prefix(
    context: typer.Context,
    name: Name,
    text: Annotated[str, typer.Argument(help="Put before the captions, as it is.")],
    file: Files = None,
    contains: Contains = "",
    tagged: Tagged = "",
    everything: Everything = False,
    validate_only: ValidateOnly = False,
    etag: ETag = None,
) -> None:
    """Put text before captions that are not empty."""
    edit = editing_pb2.Edit(
        samples=selection(file, contains, tagged, False, everything), add_prefix=text
    )
    send(session_of(context), name, edit, etag=etag, validate_only=validate_only)


@app.command()
def suffix(
    context: typer.Context,
    name: Name,
    text: Annotated[str, typer.Argument(help="Put behind the captions, as it is.")],
    file: Files = None,
    contains: Contains = "",
    tagged: Tagged = "",
    everything: Everything = False,
    validate_only: ValidateOnly = False,
    etag: ETag = None,
) -> None:
    """Put text behind captions that are not empty."""
    edit = editing_pb2.Edit(
        samples=selection(file, contains, tagged, False, everything), add_suffix=text
    )
    send(session_of(context), name, edit, etag=etag, validate_only=validate_only)


@app.command()
def tag(
    context: typer.Context,
    name: Name,
    tags: Tags,
    file: Files = None,
    contains: Contains = "",
    tagged: Tagged = "",
    missing: Missing = False,
    everything: Everything = False,
    only: Annotated[bool, typer.Option("--only", help="In place of the tags there are.")] = False,
    validate_only: ValidateOnly = False,
    etag: ETag = None,
) -> None:
    """Add tags to samples."""
    edit = editing_pb2.Edit(samples=selection(file, contains, tagged, missing, everything))
    target = edit.set_tags if only else edit.add_tags
    target.tags.extend(tags)
    send(session_of(context), name, edit, etag=etag, validate_only=validate_only)


@app.command()
def untag(
    context: typer.Context,
    name: Name,
    tags: Tags,
    file: Files = None,
    contains: Contains = "",
    tagged: Tagged = "",
    everything: Everything = False,
    validate_only: ValidateOnly = False,
    etag: ETag = None,
) -> None:
    """Take tags from samples."""
    edit = editing_pb2.Edit(
        samples=selection(file, contains, tagged, False, everything),
        remove_tags=editing_pb2.TagList(tags=tags),
    )
    send(session_of(context), name, edit, etag=etag, validate_only=validate_only)


@app.command()
def remove(
    context: typer.Context,
    name: Name,
    file: Files = None,
    contains: Contains = "",
    tagged: Tagged = "",
    missing: Missing = False,
    everything: Everything = False,
    validate_only: ValidateOnly = False,
    etag: ETag = None,
) -> None:
    """Take samples out of the dataset. Earlier versions keep them."""
    edit = editing_pb2.Edit(
        samples=selection(file, contains, tagged, missing, everything),
        remove=editing_pb2.RemoveSamples(),
    )
    send(session_of(context), name, edit, etag=etag, validate_only=validate_only)


def delete(
    context: typer.Context,
    name: Name,
    version: Annotated[
        int | None, typer.Option(min=1, help="Only this version, which is not the latest.")
    ] = None,
    after_use: Annotated[
        bool,
        typer.Option("--after-use", help="If a run uses it, remove it when the run is over."),
    ] = False,
) -> None:
    """Remove a dataset with all its versions, or one version."""
    session = session_of(context)

    async def work(client: Client) -> None:
        if version is None:
            pending = await client.datasets.delete_dataset(name, after_use=after_use)
        else:
            pending = await client.datasets.delete_dataset_version(
                name, version, after_use=after_use
            )
        if session.as_json:
            session.print_json({"pending": pending})
            return
        what = name if version is None else f"{name}, version {version}"
        session.print(f"{what} {'is removed after its use' if pending else 'is gone'}")

    session.run(work)
