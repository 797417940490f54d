"""Options of the format: in any case, typed, and refused with what is wrong (E1)."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from penstock.errors import BadFilter, BadInput, BadName, BadUrl, PenstockError
from penstock.model.columns import LogColumns
from penstock.model.message import Message, MessageId, Offset
from penstock.pipeline.format.read_options import SourceOptions, source_options
from penstock.pipeline.format.schemas import spark_schema, table_schema, to_table
from penstock.pipeline.format.source import PenstockSource
from penstock.pipeline.remote import Server
from penstock.wire.arrow import log_batch

URL = "http://127.0.0.1:9"


def parsed(**options: str) -> SourceOptions:
    return source_options({"url": URL, **options})


def test_the_usual() -> None:
    assert parsed() == SourceOptions(server=Server(URL))
    assert parsed(table="DELIVERIES").payload is False


def test_names_and_words_in_any_case() -> None:
    given = {
        "URL": URL,
        "Credential": "key",
        "TOPIC": "a, b",
        "WHERE": "Amount > 5",
        "startingoffsets": "Latest",
        "ENDINGOFFSETS": "LATEST",
        "maxoffsetspertrigger": "7",
        "entriesPerPartition": "8",
        "Payload": "FALSE",
        "failondataloss": "False",
        "compression": "ZSTD",
    }
    assert source_options(given) == SourceOptions(
        server=Server(URL, "key"),
        where="(topic IN ('a', 'b')) AND (Amount > 5)",
        start="latest",
        per_trigger=7,
        per_partition=8,
        payload=False,
        fail_on_data_loss=False,
        compression="zstd",
    )


@pytest.mark.parametrize(
    "options, kind, said",
    [
        ({"url": ""}, BadInput, "url is missing"),
        ({"url": "ftp://x"}, BadUrl, "scheme"),
        ({"credential": "a b"}, BadInput, "credential"),
        ({"credential": "file:"}, BadInput, "credential"),
        ({"table": "logs"}, BadInput, "table is 'logs'; it is one of log, deliveries"),
        ({"startingOffset": "0"}, BadInput, "did you mean startingOffsets"),
        ({"path": "x"}, BadInput, "load() gets the URL of a server"),
        ({"path": "http://127.0.0.1:8"}, BadInput, "are two servers"),
        ({"colour": "x"}, BadInput, "has no option 'colour'; it has"),
        ({"table": "history", "where": "TRUE"}, BadInput, "The table history has no option"),
        ({"table": "failed", "startingOffsets": "0"}, BadInput, "The table failed has no option"),
        ({"table": "log", "queue": "q"}, BadInput, "The table log has no option"),
        ({"startingOffsets": "first"}, BadInput, "earliest or latest or an offset"),
        ({"startingOffsets": "-1"}, BadInput, "startingOffsets is '-1'"),
        ({"startingOffsets": "9" * 30}, BadInput, "whole number from 0 to"),
        ({"endingOffsets": "first"}, BadInput, "latest or an offset"),
        ({"startingOffsets": "{"}, BadInput, "startingOffsets is not JSON"),
        ({"startingOffsets": "{}"}, BadInput, "has to be like"),
        ({"startingOffsets": '{"t": 1}'}, BadInput, "subscribe has to name exactly these topics"),
        ({"startingOffsets": '{"t": {"0": 1, "1": 2}}'}, BadInput, "a topic has one log"),
        ({"startingOffsets": '{"t": -3}'}, BadInput, "'-3' is not an offset"),
        ({"startingOffsetsByTimestamp": '{"t": "now"}'}, BadInput, "'now' is not epoch"),
        ({"startingTimestamp": "yesterday"}, BadInput, "startingTimestamp is 'yesterday'"),
        ({"startingOffsetsByTimestampStrategy": "x"}, BadInput, "one of error, latest"),
        ({"subscribe": "a", "topic": "b"}, BadInput, "Only one of topic and subscribe"),
        ({"subscribePattern": "("}, BadInput, "no regular expression"),
        ({"minPartitions": "0"}, BadInput, "whole number from 1 to"),
        ({"maxTriggerDelay": "1m"}, BadInput, "requires minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, BadInput, "such as 15m"),
        ({"maxBytesPerTrigger": "0"}, BadInput, "at least 1 byte"),
        ({"maxBytesPerTrigger": "5 parsecs"}, BadInput, "a size such as 64m"),
        ({"keyType": "int"}, BadInput, "one of string, binary"),
        ({"table": "failed", "subscribe": "t"}, BadInput, "The table failed has no option"),
        ({"startingOffsets": "2", "endingOffsets": "1"}, BadInput, "above endingOffsets"),
        ({"maxOffsetsPerTrigger": "0"}, BadInput, "whole number from 1 to"),
        ({"entriesPerPartition": "1e6"}, BadInput, "whole number from 1 to"),
        ({"entriesPerPartition": "²"}, BadInput, "whole number from 1 to"),
        ({"payload": "yes"}, BadInput, "payload is 'yes'; it is true or false"),
        ({"compression": "gzip"}, BadInput, "one of none, lz4, zstd"),
        ({"topic": "a,,b"}, BadName, "topic ''"),
        ({"where": "amount >"}, BadFilter, ""),
        ({"table": "deliveries", "queue": "a b"}, BadName, "queue 'a b'"),
    ],
)
def test_what_is_wrong_is_said(
    options: dict[str, str], kind: type[PenstockError], said: str
) -> None:
    with pytest.raises(kind) as caught:
        parsed(**options)
    assert said in str(caught.value)


def test_a_batch_has_no_triggers() -> None:
    given = PenstockSource({"url": URL, "maxOffsetsPerTrigger": "5"})
    with pytest.raises(BadInput, match="is for readStream"):
        given.reader(given.schema())


def test_a_queue_without_a_table_is_consumed() -> None:
    given = PenstockSource({"url": URL, "queue": "q"})
    log = PenstockSource({"url": URL}).schema().fieldNames()
    assert given.schema().fieldNames()[: len(log)] == log
    with pytest.raises(BadInput, match="table=deliveries"):
        given.reader(given.schema())


# -- schemas ---------------------------------------------------------------------------


@pytest.mark.parametrize("payload", [True, False])
@pytest.mark.parametrize("table", ["log", "deliveries", "failed", "history"])
def test_what_spark_makes_of_a_table_is_the_table(table: str, payload: bool) -> None:
    schema = table_schema(table, payload=payload)
    assert to_arrow_schema(spark_schema(schema), timezone="UTC").equals(schema)
    assert ("value" in schema.names) == (payload and table != "history")


def test_the_columns_of_the_log() -> None:
    found = spark_schema(table_schema("log", payload=True)).simpleString()
    assert found == (
        "struct<offset:bigint,id:bigint,topic:string,key:string,value:binary,"
        "headers:map<string,struct<s:string,i:bigint,d:double,b:boolean>>,timestamp:timestamp,"
        "partition_key:string,priority:int,content_type:string,deliver_at:timestamp,"
        "expires_at:timestamp,size:bigint,checksum:bigint,max_attempts:int,replace_key:string>"
    )


def test_a_server_of_an_earlier_version_sends_no_max_attempts() -> None:
    message = Message(MessageId(1), Offset(1), "t", 4, 0, 0, None, 0, 0, max_attempts=3)
    batch = log_batch(LogColumns.of([message], Offset(2)))
    schema = table_schema("log", payload=False)
    assert to_table(batch, schema).column("max_attempts").to_pylist() == [3]
    earlier = batch.drop_columns(["max_attempts"])
    assert to_table(earlier, schema).column("max_attempts").to_pylist() == [None]
    with pytest.raises(KeyError):
        to_table(batch.drop_columns(["topic"]), schema)


def test_a_schema_of_the_users_own_is_refused() -> None:
    given = PenstockSource({"url": URL})
    with pytest.raises(BadInput, match=r"leave schema\(\) out"):
        given.reader(StructType().add("offset", "long"))


def test_a_credential_is_not_shown() -> None:
    shown: Any = repr(parsed(credential="s3cret"))
    assert "s3cret" not in shown


def test_a_credential_may_be_a_file() -> None:
    assert (
        parsed(credential="file:/run/secrets/a key").server.credential == "file:/run/secrets/a key"
    )
