"""Arrow batches: bounded by what they declare, before anything is decompressed."""

from __future__ import annotations

import io
from random import Random

import pyarrow as pa
import pytest

from penstock.errors import BadInput, TooLarge
from penstock.filters.to_arrow import METADATA_SCHEMA
from penstock.model.message import NewMessage
from penstock.testing.laws import law
from penstock.wire.arrow import declared_size, open_messages, read_messages

MB = 2**20
LIMIT = 8 * MB
HEADERS = METADATA_SCHEMA.field("headers").type


def stream(*batches: pa.RecordBatch | pa.Table, compression: str | None = None) -> bytes:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write(batch)
    return sink.getvalue()


def opened(body: bytes) -> pa.Table:
    assert declared_size(body, LIMIT) <= LIMIT
    return open_messages(body, LIMIT)


def messages(body: bytes) -> list[NewMessage]:
    return [one for part in read_messages(opened(body)) for one in part]


@law("P3")
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_what_is_sent_is_read(compression: str | None) -> None:
    random = Random(1)
    payloads = [random.randbytes(random.randrange(2_000)) for _ in range(700)]
    names = [f"id-{number}" for number in range(700)]
    batch = pa.record_batch(
        {
            "payload": payloads,
            "id": names,
            "content_type": pa.array(["text/plain", "a/b"] * 350).dictionary_encode(),
            "priority": pa.array([number % 10 for number in range(700)], pa.int32()),
            "headers": pa.array(
                [[("n", {"s": None, "i": n, "d": None, "b": None})] for n in range(700)], HEADERS
            ),
        }
    )
    found = messages(stream(batch, batch.slice(0, 5), compression=compression))
    assert [message.payload for message in found] == payloads + payloads[:5]
    assert found[3] == NewMessage(payloads[3], {"n": 3}, "id-3", priority=3, content_type="a/b")


@law("E1")
@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_decompression_bomb(compression: str) -> None:
    """Zeros of 64 MiB are some kilobytes; ten batches of 1 MiB each are over the limit too."""
    bomb = stream(pa.record_batch({"payload": [bytes(64 * MB)]}), compression=compression)
    assert len(bomb) < MB
    before = pa.total_allocated_bytes()
    with pytest.raises(TooLarge) as caught:
        opened(bomb)
    assert caught.value.limit == LIMIT
    assert pa.total_allocated_bytes() - before < MB
    several = [pa.record_batch({"payload": [bytes(MB)]})] * 10
    with pytest.raises(TooLarge):
        opened(stream(*several, compression=compression))
    assert len(messages(stream(*several[:7], compression=compression))) == 7


@law("E1")
def test_a_value_that_is_named_again_and_again() -> None:
    """A dictionary, a view or runs: 1 MB in the body, 10 GB in the rows."""
    big = pa.array([b"x" * MB])
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int32()), big)
    with pytest.raises(TooLarge) as caught:
        messages(stream(pa.record_batch({"payload": dictionary})))
    assert caught.value.field == "payload"
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([10_000], pa.int32()), big)
    with pytest.raises(BadInput):
        messages(stream(pa.record_batch({"payload": runs})))
    views = big.cast(pa.binary_view())
    with pytest.raises(BadInput):
        messages(stream(pa.record_batch({"payload": views})))


@law("E1")
def test_values_that_are_named_again_in_several_columns() -> None:
    """Each column is within the limit, and all of them together are not."""
    text = pa.array(["x" * (LIMIT // 20_000)])
    again = pa.DictionaryArray.from_arrays(pa.array([0] * 10_000, pa.int32()), text)
    columns: dict[str, pa.Array] = {"payload": pa.array([b"x"] * 10_000), "id": again}
    assert len(messages(stream(pa.record_batch(columns)))) == 10_000
    columns |= dict.fromkeys(("key", "partition_key", "content_type"), again)
    with pytest.raises(TooLarge) as caught:
        messages(stream(pa.record_batch(columns)))
    assert caught.value.limit == LIMIT


@law("E1")
def test_a_dictionary_that_grows_with_every_batch() -> None:
    """Arrow would copy the whole dictionary for each batch: 100 times 4 MiB here."""
    values = [bytes(LIMIT // 2), *(b"%d" % number for number in range(100))]
    schema = pa.schema([("payload", pa.dictionary(pa.int32(), pa.binary()))])
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression="zstd", emit_dictionary_deltas=True)
    with pa.ipc.new_stream(sink, schema, options=options) as writer:
        for count in range(2, len(values) + 1):
            rows = pa.array([count - 1], pa.int32())
            column = pa.DictionaryArray.from_arrays(rows, pa.array(values[:count]))
            writer.write(pa.record_batch([column], schema=schema))
    before = pa.total_allocated_bytes()
    with pytest.raises(BadInput, match="delta"):
        opened(sink.getvalue())
    assert pa.total_allocated_bytes() - before < LIMIT


@law("E1")
def test_a_version_whose_sizes_are_elsewhere() -> None:
    """Before Arrow 1.0 the codec stood elsewhere: sizes would be those of compressed bytes."""
    old = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    sink = io.BytesIO()
    table = pa.table({"payload": pa.array([b"x"], pa.binary())})
    with pa.ipc.new_stream(sink, table.schema, options=old) as writer:
        writer.write_table(table)
    with pytest.raises(BadInput, match=r"older than Arrow 1\.0"):
        declared_size(sink.getvalue(), 1_000_000)


@law("E1")
def test_more_rows_than_a_batch_may_have() -> None:
    nothing = pa.record_batch({"payload": pa.nulls(10_001)})
    with pytest.raises(TooLarge) as caught:
        opened(stream(nothing))
    assert caught.value.field == "messages"
    with pytest.raises(TooLarge):
        opened(stream(*[nothing.slice(0, 5_001)] * 2))


@law("E1")
def test_more_headers_than_a_message_may_have() -> None:
    row = [(f"h{n}", {"s": None, "i": n, "d": None, "b": None}) for n in range(65)]
    batch = pa.record_batch({"payload": [b"x"], "headers": pa.array([row], HEADERS)})
    with pytest.raises(TooLarge):
        opened(stream(batch))
    text = "{" + " " * 200_000 + "}"
    with pytest.raises(TooLarge):
        opened(stream(pa.record_batch({"payload": [b"x"], "headers": [text]})))


@pytest.mark.parametrize(
    "names, detail",
    [
        (["payload", "colour"], "A batch has no column 'colour'"),
        (["payload", "topic_name", "id"], "A batch has no column 'topic_name'"),
        (["payload", "id", "id"], "The column id occurs more than once."),
        (["id"], "The column payload is missing."),
    ],
)
def test_columns_that_a_batch_cannot_have(names: list[str], detail: str) -> None:
    batch = pa.record_batch([pa.array(["x"])] * len(names), names=names)
    with pytest.raises(BadInput) as caught:
        messages(stream(batch))
    assert caught.value.detail.startswith(detail)


@law("E1")
def test_damaged_streams() -> None:
    """Whatever a byte becomes, it is read within the bounds or refused."""
    body = stream(pa.record_batch({"payload": [b"x" * 100] * 3}), compression="zstd")
    random = Random(7)
    for _ in range(400):
        damaged = bytearray(body)
        for _ in range(random.randint(1, 4)):
            damaged[random.randrange(len(body))] = random.randrange(256)
        try:
            messages(bytes(damaged))
        except BadInput:
            continue
    for end in range(len(body)):
        try:
            declared_size(body[:end], LIMIT)
        except BadInput:
            continue
