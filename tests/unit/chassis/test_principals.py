import pytest

from sfumato.blobs.v1 import blobs_pb2
from sfumato.datasets.v1 import datasets_pb2
from sfumato.job.v1 import worker_pb2
from sfumato_chassis.errors import InvalidArgument, PermissionDenied, Reason, Unauthenticated
from sfumato_chassis.principals import (
    AUTHORIZATION_HEADER,
    LOCAL,
    PRINCIPAL_HEADER,
    Authenticator,
    Principal,
    Scope,
    granted,
    refused_key,
    scope_of,
)

DATASETS = datasets_pb2.DESCRIPTOR.services_by_name["DatasetsService"].full_name
BLOBS = blobs_pb2.DESCRIPTOR.services_by_name["BlobService"].full_name
WORKERS = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name
METHOD = f"/{DATASETS}/GetImport"


class OneKey:
    """Knows one key."""

    def __init__(self, *scopes: Scope) -> None:
        self.principal = Principal(name="anna", scopes=granted(scopes))

    async def principal_of(self, key: str) -> Principal:
        if key != "sfm_k":
            raise refused_key("the API key is unknown")
        return self.principal


def authenticator(*scopes: Scope, required: bool = False) -> Authenticator:
    return Authenticator(OneKey(*scopes), required=required)


def bearing(key: str = "sfm_k", **others: str) -> dict[str, str]:
    return {AUTHORIZATION_HEADER: f"Bearer {key}", **others}


@pytest.mark.parametrize(
    ("method", "scope"),
    [
        (f"/{DATASETS}/GetImport", Scope.READ),
        (f"/{DATASETS}/CreateImport", Scope.DATASETS),
        (f"/{BLOBS}/WriteChunk", Scope.DATASETS),
        (f"/{BLOBS}/ReadBlob", Scope.READ),
        (f"/{WORKERS}/Report", Scope.ADMIN),
    ],
)
def test_the_scope_is_the_protos_or_admin(method: str, scope: Scope) -> None:
    assert scope_of(method) is scope


@pytest.mark.parametrize("metadata", [{}, {PRINCIPAL_HEADER: LOCAL}])
async def test_without_keys_every_caller_is_local(metadata: dict[str, str]) -> None:
    principal = await authenticator().authenticate(METHOD, metadata)
    assert principal.name == LOCAL
    assert principal.scopes == frozenset(Scope)


def test_a_caller_without_a_key_does_not_wait() -> None:
    answering = authenticator().authenticate(METHOD, {})
    with pytest.raises(StopIteration) as returned:
        answering.send(None)
    assert returned.value.value.name == LOCAL


@pytest.mark.parametrize("name", ["alice", "alice@example.org", "a", "x" * 128])
async def test_a_service_may_call_on_a_users_behalf(name: str) -> None:
    metadata = {PRINCIPAL_HEADER: name}
    assert (await authenticator().authenticate(METHOD, metadata)).name == name


@pytest.mark.parametrize("name", ["", " a", "-a", "a/b", "a\nb", "é", "x" * 129])
async def test_what_cannot_be_a_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        await authenticator().authenticate(METHOD, {PRINCIPAL_HEADER: name})


@pytest.mark.parametrize("required", [True, False])
async def test_a_key_that_is_sent_is_heeded_whether_or_not_it_must_be(required: bool) -> None:
    caller = authenticator(Scope.READ, required=required)
    assert (await caller.authenticate(METHOD, bearing())).name == "anna"
    with pytest.raises(Unauthenticated):
        await caller.authenticate(METHOD, bearing("sfm_other"))


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {PRINCIPAL_HEADER: "anna"},
        {AUTHORIZATION_HEADER: ""},
        {AUTHORIZATION_HEADER: "sfm_k"},
        {AUTHORIZATION_HEADER: "Basic sfm_k"},
    ],
)
async def test_where_a_key_must_be_nothing_else_does(metadata: dict[str, str]) -> None:
    with pytest.raises(Unauthenticated) as refused:
        await authenticator(Scope.ADMIN, required=True).authenticate(METHOD, metadata)
    assert refused.value.reason is Reason.UNAUTHENTICATED
    assert "sfm_k" not in refused.value.message


@pytest.mark.parametrize(
    "scope", [scope for scope in Scope if scope not in {Scope.READ, Scope.ADMIN}]
)
async def test_a_missing_scope_is_named(scope: Scope) -> None:
    with pytest.raises(PermissionDenied) as refused:
        await authenticator(scope).authenticate(METHOD, bearing())
    assert refused.value.details == {"scope": "read"}


async def test_admin_impersonates_nobody() -> None:
    admin = authenticator(Scope.ADMIN)
    assert (await admin.authenticate(METHOD, bearing())).name == "anna"
    await admin.authenticate(METHOD, bearing(**{PRINCIPAL_HEADER: "anna"}))
    with pytest.raises(PermissionDenied) as refused:
        await admin.authenticate(METHOD, bearing(**{PRINCIPAL_HEADER: "boris"}))
    assert refused.value.details == {"scope": "impersonate"}


async def test_a_service_key_keeps_its_own_scopes() -> None:
    service = authenticator(Scope.IMPERSONATE, Scope.READ)
    metadata = bearing(**{PRINCIPAL_HEADER: "boris"})
    principal = await service.authenticate(METHOD, metadata)
    assert principal == Principal(name="boris", scopes=frozenset({Scope.IMPERSONATE, Scope.READ}))
    with pytest.raises(PermissionDenied):
        await service.authenticate(f"/{DATASETS}/CreateImport", metadata)
