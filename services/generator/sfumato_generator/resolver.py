"""From what a caller asks for to a plan: every default resolved, every refusal made, nothing loaded."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sfumato_chassis.errors import FailedPrecondition, InvalidArgument, Reason
from sfumato_chassis.threads import Threads
from sfumato_diffusion.families.info import (
    BaseModel,
    FamilyInfo,
    Precision,
    UnsupportedPrecisionError,
)
from sfumato_diffusion.seeds import LARGEST_SEED
from sfumato_generator.configuration import (
    AdapterChoice,
    Configuration,
    GenerationRequest,
    ModelSource,
)
from sfumato_generator.models import CacheRoots, LocatedModel, locate_model, unsupported
from sfumato_generator.plan import AdapterFile, GenerationPlan

DEFAULT_SIDE = 1024
MAX_IMAGES_BYTES = 3 << 20
"""Records of all images of one generation together; a message holds at most 4 MiB."""

DrawSeed = Callable[[], int]
"""A seed for a generation that asks for none, small enough to add the number of images to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundAdapter:
    """An adapter as its owner service tells of it.

    Attributes:
        base_model: What it was trained on.
    """

    name: str
    digest: str
    size_bytes: int
    media_type: str
    family: str
    base_model: ModelSource | None


class AdapterDirectory(Protocol):
    """Knows the adapters of training runs."""

    async def find(
        self, choices: Sequence[AdapterChoice], owner: str, *, path: str
    ) -> Sequence[FoundAdapter]:
        """The adapters of ``owner`` that ``choices`` name, in order; ``path`` is their list's field.

        Raises:
            NotFound: RESOURCE_NOT_FOUND, naming the field.
            Unavailable: SERVICE_UNREACHABLE.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationResolver:
    """Resolves generations on one machine.

    Attributes:
        roots: Folders under which callers may name models.
        cache_roots: Where snapshots of the Hub lie.
        adapters: Knows the adapters of training runs.
        device: Where pictures are made.
        precision: As configured.
        draw_seed: Draws the seed of a generation that asks for none.
        reading: Looks through models.
    """

    roots: Sequence[Path]
    cache_roots: CacheRoots
    adapters: AdapterDirectory
    device: str
    precision: str
    draw_seed: DrawSeed
    reading: Threads

    async def resolve(self, asked: GenerationRequest, owner: str) -> GenerationPlan:
        """The plan of a generation of ``owner``.

        Raises:
            InvalidArgument: FIELD_INVALID, a value that the model cannot honour.
            NotFound: The model or an adapter.
            FailedPrecondition: MODEL_UNSUPPORTED, WEIGHTS_UNSAFE, ADAPTER_INCOMPATIBLE or
                MACHINE_INCAPABLE.
            Unavailable: SERVICE_UNREACHABLE, the trainer did not answer.
        """
        check_adapter_kinds(asked.adapters)
        model = await self.reading.run(
            locate_model,
            asked.model,
            asked.family,
            roots=self.roots,
            cache_roots=self.cache_roots,
        )
        precision = resolve_precision(self.precision, self.device, model.info)
        configuration = resolve_configuration(asked, model, draw_seed=self.draw_seed)
        found: Sequence[FoundAdapter] = ()
        if asked.adapters:
            path = "configuration.adapters"
            found = await self.adapters.find(asked.adapters, owner, path=path)
        check_adapters(found, model)
        return GenerationPlan(
            configuration=configuration,
            model_directory=str(model.directory),
            model_marker=model.marker,
            requested_precision=self.precision,
            precision=precision,
            adapters=tuple(
                AdapterFile(
                    name=adapter.name,
                    digest=adapter.digest,
                    size_bytes=adapter.size_bytes,
                    media_type=adapter.media_type,
                    weight=choice.weight,
                )
                for adapter, choice in zip(found, asked.adapters, strict=True)
            ),
        )


def resolve_configuration(
    asked: GenerationRequest, model: LocatedModel, *, draw_seed: DrawSeed
) -> Configuration:
    """Fills in every default; refuses what the model would ignore.

    Raises:
        InvalidArgument: FIELD_INVALID.
        FailedPrecondition: MODEL_UNSUPPORTED.
    """
    info, base = model.info, model.base
    if asked.workflow not in info.workflows:
        raise unsupported(f"{info.name} has no {asked.workflow}")
    width, height = asked.width or DEFAULT_SIDE, asked.height or DEFAULT_SIDE
    check_side(model, "width", width)
    check_side(model, "height", height)
    guidance = resolve_guidance(asked.guidance, base)
    negative_prompt = asked.negative_prompt or None
    if negative_prompt is not None:
        check_negative_prompt(base, guidance)
    count = asked.count or 1
    seed = draw_seed() if asked.seed is None else asked.seed
    if seed + count - 1 > LARGEST_SEED:
        raise InvalidArgument.field(
            "configuration.seed", f"the last image's seed would be above {LARGEST_SEED}"
        )
    configuration = Configuration(
        model=model.source,
        family=info.name,
        prompt=asked.prompt,
        negative_prompt=negative_prompt,
        width=width,
        height=height,
        steps=asked.steps or base.steps,
        guidance=guidance,
        seed=seed,
        count=count,
        adapters=asked.adapters,
        workflow=asked.workflow,
    )
    size_bytes = len(json.dumps(configuration.to_json(), ensure_ascii=False).encode())
    if count * size_bytes > MAX_IMAGES_BYTES:
        raise InvalidArgument.field(
            "configuration.count", "too many images of so long a prompt for one generation"
        )
    return configuration


def check_side(model: LocatedModel, field: str, side: int) -> None:
    """Raises InvalidArgument for a side that the model cannot make."""
    info, path = model.info, f"configuration.{field}"
    if side % info.size_divisor:
        raise InvalidArgument.field(
            path, f"must be a multiple of {info.size_divisor} for {info.name}"
        )
    if not info.minimum_side <= side <= model.max_side:
        raise InvalidArgument.field(
            path, f"must be {info.minimum_side} to {model.max_side} for this {info.name} model"
        )


def resolve_guidance(requested: float | None, base: BaseModel) -> float:
    """The guidance at which a base samples.

    Raises:
        InvalidArgument: The base ignores guidance, and another value than its own was asked for.
    """
    if requested is None or requested == base.guidance.default:
        return base.guidance.default
    if base.guidance.acts_above is None:
        raise InvalidArgument.field("configuration.guidance", "this base model ignores guidance")
    return requested


def check_negative_prompt(base: BaseModel, guidance: float) -> None:
    """Raises InvalidArgument where a negative prompt would do nothing."""
    path = "configuration.negative_prompt"
    acts_above = base.guidance.acts_above
    match base.guidance.negative_prompt:
        case "never":
            raise InvalidArgument.field(path, "this base model takes no negative prompt")
        case "with_true_cfg_scale":
            raise InvalidArgument.field(
                path, "this base model ignores it without true classifier-free guidance"
            )
        case "with_guidance":
            if acts_above is None or guidance <= acts_above:
                raise InvalidArgument.field(
                    path, f"acts only with guidance above {acts_above or 0.0:g}"
                )


def resolve_precision(requested: str, device: str, info: FamilyInfo) -> Precision:
    """The precision that engages.

    Raises:
        FailedPrecondition: MACHINE_INCAPABLE, or MODEL_UNSUPPORTED with the family's reason.
    """
    precisions: dict[str, Precision] = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16"}
    precision = precisions.get(requested, "fp32" if device == "cpu" else "bf16")
    if precision == "fp16" and device == "cpu":
        raise FailedPrecondition(Reason.MACHINE_INCAPABLE, "fp16 needs a GPU; use fp32 or bf16")
    try:
        info.check_precision(precision)
    except UnsupportedPrecisionError as error:
        raise unsupported(str(error)) from error
    return precision


def check_adapter_kinds(choices: Sequence[AdapterChoice]) -> None:
    """Raises ADAPTER_INCOMPATIBLE for an adapter from where none can be taken."""
    for index, choice in enumerate(choices):
        if choice.kind not in {"training_run", "adapter"}:
            place = "an upload" if choice.kind == "upload_digest" else "the Hub"
            raise incompatible(
                index, f"adapters from {place} cannot be used; name a run or adapter"
            )


def check_adapters(found: Sequence[FoundAdapter], model: LocatedModel) -> None:
    """Each adapter once, each of the model's family, each meant for this base.

    Raises:
        InvalidArgument: An adapter stands in the list twice.
        FailedPrecondition: ADAPTER_INCOMPATIBLE.
    """
    digests = [adapter.digest for adapter in found]
    for index, adapter in enumerate(found):
        if adapter.digest in digests[:index]:
            raise InvalidArgument.field(
                f"configuration.adapters[{index}].adapter", f"{adapter.name} is in the list already"
            )
        if adapter.family != model.info.name:
            raise incompatible(
                index, f"{adapter.name} is for {adapter.family}, the model is {model.info.name}"
            )
        check_deployment(index, adapter, model)


def check_deployment(index: int, adapter: FoundAdapter, model: LocatedModel) -> None:
    """Raises ADAPTER_INCOMPATIBLE where both bases are known and the one's adapters are not for the other."""
    bases = {base.repository.lower(): base for base in model.info.bases}
    trained = adapter.base_model
    if trained is None or trained.kind != "hub" or model.source.kind != "hub":
        return
    trained_on = bases.get(trained.reference.lower())
    target = bases.get(model.source.reference.lower())
    if trained_on is None or target is None or trained_on is target:
        return
    if target.repository not in trained_on.deploys_on:
        raise incompatible(
            index,
            f"{adapter.name} was trained on {trained_on.repository} and does not work on"
            f" {target.repository}",
        )


def incompatible(index: int, message: str) -> FailedPrecondition:
    """The error of the adapter at ``index``."""
    field = f"configuration.adapters[{index}].adapter"
    return FailedPrecondition(
        Reason.ADAPTER_INCOMPATIBLE, f"{field}: {message}", details={"field": field}
    )
