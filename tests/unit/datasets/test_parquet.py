"""Images and captions out of Parquet: which columns and rows are read, and as what."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from parquet_bench import HUB_IMAGE, ParquetBench, features, hub_column
from sfumato_datasets.captions import MAX_CAPTION_CHARACTERS, MAX_TAGS, MAX_VARIANTS
from sfumato_datasets.parquet import ParquetDamagedError, ParquetUnsupportedError


@pytest.fixture
def bench(tmp_path: Path) -> ParquetBench:
    return ParquetBench.in_folder(tmp_path / "bench")


@pytest.mark.parametrize("metadata", [None, features("image")])
def test_the_hubs_own_columns(bench: ParquetBench, metadata: object) -> None:
    bench.write(
        {
            "image": hub_column(),
            "text": ["a", None, "c"],
            "tags": [["one", "two"], None, []],
            "raw": [b"no image"] * 3,
            "count": [1, 2, 3],
        },
        metadata,
    )
    found = bench.extract()
    assert found.image_column == "image"
    assert found.has_caption_column
    assert [row.path for row in found.rows] == ["0.png", "1.png", "2.png"]
    assert bench.images(found) == [b"", b"1", b"22"]
    assert [row.caption for row in found.rows] == ["a", None, "c"]
    assert [row.tags for row in found.rows] == [["one", "two"], None, []]


def test_metadata_of_the_hub_tells_the_image_from_its_mask(bench: ParquetBench) -> None:
    columns = {"mask": hub_column(), "image": hub_column()}
    bench.write(columns, features("image", "gone"))
    found = bench.extract()
    assert (found.image_column, found.has_caption_column) == ("image", False)
    assert [row.caption for row in found.rows] == [None] * 3
    for nonsense in ("text", {"info": []}, {"info": {"features": {"image": 3}}}):
        bench.write(columns, nonsense)
        with pytest.raises(ParquetUnsupportedError, match="'mask', 'image'"):
            bench.extract()


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int32(), pa.binary())],
    ids=str,
)
def test_plain_columns_of_bytes(bench: ParquetBench, kind: pa.DataType) -> None:
    images = pa.array([b"one", None, b"", b"one"], pa.binary()).cast(kind)
    bench.write({"picture": images, "text": ["a", "b", "c", "d"]})
    found = bench.extract()
    assert found.image_column == "picture"
    assert bench.images(found) == [b"one", b"", b"", b"one"]
    assert [row.path for row in found.rows] == [None] * 4


def test_rows_without_an_image_have_no_bytes(bench: ParquetBench) -> None:
    images = [{"bytes": b"a", "path": None}, None, {"bytes": None, "path": "b.png"}]
    bench.write({"image": pa.array(images, HUB_IMAGE), "text": ["a", "b", "c"]})
    found = bench.extract()
    assert bench.images(found) == [b"a", b"", b""]
    assert [row.path for row in found.rows] == [None, None, "b.png"]


def test_captions_that_are_text(bench: ParquetBench) -> None:
    texts = ["käse", "", None, "käse"]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert bench.captions(pa.array(texts, kind)) == texts
    assert bench.captions(pa.array(texts).dictionary_encode()) == texts


def test_captions_that_are_lists(bench: ParquetBench) -> None:
    lists = [["a", None, "b"], [], None]
    for kind in (pa.list_(pa.string()), pa.large_list(pa.large_string())):
        assert bench.captions(pa.array(lists, kind)) == lists
    many = [str(number) for number in range(5000)]
    assert bench.captions(pa.array([many])) == [many[: MAX_VARIANTS + 2]]


def test_captions_that_are_no_text(bench: ParquetBench) -> None:
    assert bench.captions(pa.array([1, None])) == [1, None]
    assert bench.captions(pa.array([True, False])) == [True, False]
    unsupported = {"unsupported": "double"}
    assert bench.captions(pa.array([0.5, float("nan")])) == [0.5, unsupported]
    assert bench.captions(pa.array([b"a"])) == [{"unsupported": "binary"}]
    assert bench.captions(pa.array([{"a": 1}])) == [{"unsupported": "struct<a: int64>"}]
    assert bench.captions(pa.array([[["a"]]])) == [[{"unsupported": "list<element: string>"}]]


def test_captions_that_are_too_long_stay_so(bench: ParquetBench) -> None:
    longest = "ö" * MAX_CAPTION_CHARACTERS
    of_lines = "a\r\n" * (MAX_CAPTION_CHARACTERS // 2)
    captions = bench.captions(pa.array([longest, longest + "x" * 9_000_000, of_lines]))
    assert captions[:2] == [longest, longest + "x"]
    assert captions[2] == of_lines.replace("\r\n", "\n").strip()
    assert bench.captions(pa.array([[longest + "xx"]])) == [[longest + "x"]]


def test_bytes_that_are_no_utf8_are_kept_for_the_import_to_refuse(bench: ParquetBench) -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 2, pa.array([b"a\xff", b"b"]).buffers(), null_count=0
    )
    assert bench.captions(broken) == ["a\udcff", "b"]


def test_too_many_tags_stay_too_many(bench: ParquetBench) -> None:
    bench.write({"image": [b"a"], "tags": [[str(number) for number in range(1000)]]})
    (row,) = bench.extract().rows
    assert isinstance(row.tags, list)
    assert len(row.tags) == MAX_TAGS + 1


def test_row_groups_and_a_largest_number_of_rows(bench: ParquetBench) -> None:
    images = [b"%d" % number for number in range(100)]
    bench.write({"image": images, "text": [str(number) for number in range(100)]}, row_group_size=7)
    found = bench.extract()
    assert bench.images(found) == images
    assert [row.caption for row in found.rows] == [str(number) for number in range(100)]
    for max_rows in (0, 1, 20, 1000):
        found = bench.extract(max_rows=max_rows)
        assert bench.images(found) == images[:max_rows]


def test_row_groups_beyond_the_wanted_rows_are_not_read(bench: ParquetBench) -> None:
    bench.write({"image": [b"%d" % number for number in range(200)]}, row_group_size=100)
    group = pq.read_metadata(bench.file).row_group(1).column(0)
    data = bytearray(bench.file.read_bytes())
    first = group.dictionary_page_offset
    data[first : first + group.total_compressed_size] = bytes(group.total_compressed_size)
    bench.file.write_bytes(data)
    assert len(bench.extract(max_rows=100).rows) == 100
    with pytest.raises(ParquetDamagedError):
        bench.extract(max_rows=101)


def test_one_of_several_columns_is_chosen(bench: ParquetBench) -> None:
    bench.write({"before": hub_column(), "after": hub_column(), "raw": [b"r"] * 3, "n": [1, 2, 3]})
    with pytest.raises(ParquetUnsupportedError, match=r"choose one: 'before', 'after'$"):
        bench.extract()
    assert bench.extract("after").image_column == "after"
    assert bench.images(bench.extract("raw")) == [b"r"] * 3
    for name, complaint in (("n", "'n' holds no images"), ("Raw", "no column 'Raw'")):
        with pytest.raises(ParquetUnsupportedError, match=complaint):
            bench.extract(name)


def test_names_of_columns_are_matched_exactly(bench: ParquetBench) -> None:
    inner = pa.array([{"b": "inner"}])
    bench.write({"image": [b"x"], "a": inner, "a.b": ["outer"], "Text": ["other"]})
    assert [row.caption for row in bench.extract(caption="a.b").rows] == ["outer"]
    assert not bench.extract(caption="text").has_caption_column
    bench.write({"image": [b"x"], "a": inner})
    assert not bench.extract(caption="a.b").has_caption_column


def test_no_column_of_images(bench: ParquetBench) -> None:
    bench.write({"text": ["a"], "box": pa.array([{"bytes": 3}])})
    with pytest.raises(ParquetUnsupportedError, match="no column holds images"):
        bench.extract()
    pq.write_table(pa.table([pa.array([b"a"])] * 2, names=["image"] * 2), bench.file)
    for name in (None, "image"):
        with pytest.raises(ParquetUnsupportedError, match="several columns are named 'image'"):
            bench.extract(name)


def test_names_in_messages_are_few_and_short(bench: ParquetBench) -> None:
    bench.write({f"{number}\n" + "x" * 10_000: hub_column() for number in range(50)})
    with pytest.raises(ParquetUnsupportedError) as refusal:
        bench.extract()
    assert len(str(refusal.value)) < 2000
    assert "\n" not in str(refusal.value)
