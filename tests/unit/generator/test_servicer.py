"""Pages that would not fit a message."""

import pytest

from sfumato.generator.v1 import generator_pb2
from sfumato_generator.servicer import MAX_PAGE_BYTES, number_that_fits


@pytest.mark.parametrize(
    ("sizes", "fitting"),
    [
        ([], 0),
        ([10] * 200, 200),
        ([MAX_PAGE_BYTES // 3] * 200, 2),
        ([2 * MAX_PAGE_BYTES, 10], 1),
    ],
)
def test_a_page_ends_before_it_is_too_large(sizes, fitting):
    images = [
        generator_pb2.Image(configuration=generator_pb2.GenerationConfiguration(prompt="x" * size))
        for size in sizes
    ]
    assert number_that_fits(images) == fitting
