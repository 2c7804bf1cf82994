import pytest

from sfumato.blobs.v1 import blobs_pb2
from sfumato.datasets.v1 import datasets_pb2
from sfumato.job.v1 import worker_pb2
from sfumato_chassis.errors import InvalidArgument
from sfumato_chassis.principals import LOCAL, PRINCIPAL_HEADER, Authenticator, Scope, scope_of

DATASETS = datasets_pb2.DESCRIPTOR.services_by_name["DatasetsService"].full_name
BLOBS = blobs_pb2.DESCRIPTOR.services_by_name["BlobService"].full_name
WORKERS = worker_pb2.DESCRIPTOR.services_by_name["WorkerService"].full_name
METHOD = f"/{DATASETS}/GetImport"


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
def test_without_keys_every_caller_is_local(metadata: dict[str, str]) -> None:
    principal = Authenticator().authenticate(METHOD, metadata)
    assert principal.name == LOCAL
    assert principal.scopes == frozenset(Scope)


@pytest.mark.parametrize("name", ["alice", "alice@example.org", "a", "x" * 128])
def test_a_service_may_call_on_a_users_behalf(name: str) -> None:
    assert Authenticator().authenticate(METHOD, {PRINCIPAL_HEADER: name}).name == name


@pytest.mark.parametrize("name", ["", " a", "-a", "a/b", "a\nb", "é", "x" * 129])
def test_what_cannot_be_a_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument):
        Authenticator().authenticate(METHOD, {PRINCIPAL_HEADER: name})
