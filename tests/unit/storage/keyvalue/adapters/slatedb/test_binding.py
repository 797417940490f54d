"""The fast converters write and read the same bytes as those of the binding."""

import ctypes
import importlib.util
import threading
import time

import pytest
from slatedb.uniffi._slatedb_uniffi import slatedb as fast

from penstock.storage.keyvalue.adapters.slatedb import binding

VALUES = [b"", b"\0", b"key", bytes(range(256)) * 5, b"\xff" * 70_000]


@pytest.fixture(scope="module")
def stock():
    """The binding as it is distributed, loaded a second time."""
    spec = importlib.util.spec_from_file_location("stock_slatedb", fast.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def taken(buffer):
    raw = ctypes.string_at(buffer.data, buffer.len)
    buffer.free()
    return raw


@pytest.mark.parametrize("value", VALUES)
def test_bytes_are_lowered_like_the_stock_converter(stock, value):
    assert fast._UniffiFfiConverterBytes.lower is not stock._UniffiFfiConverterBytes.lower
    expected = taken(stock._UniffiFfiConverterBytes.lower(value))
    assert taken(fast._UniffiFfiConverterBytes.lower(value)) == expected


@pytest.mark.parametrize("value", [None, *VALUES])
def test_optional_bytes_are_lifted_like_the_stock_converter(stock, value):
    lowered = stock._UniffiFfiConverterOptionalBytes.lower
    assert stock._UniffiFfiConverterOptionalBytes.lift(lowered(value)) == value
    copy = fast._UniffiFfiConverterOptionalBytes.lower(value)
    assert fast._UniffiFfiConverterOptionalBytes.lift(copy) == value


@pytest.mark.parametrize("expires", [None, 5])
def test_rows_are_decoded_like_the_stock_converter(stock, expires):
    rows = [
        stock.KeyValue(key=key, value=value, seq=2**63, create_ts=-1, expire_ts=expires)
        for key, value in zip(VALUES, reversed(VALUES), strict=True)
    ]
    raw = taken(stock._UniffiFfiConverterSequenceTypeKeyValue.lower(rows))
    assert binding.pairs_of(raw) == list(zip(VALUES, reversed(VALUES), strict=True))
    with pytest.raises(ValueError, match="length"):
        binding.pairs_of(raw + b"\0")


def test_a_structure_is_lowered_like_the_stock_converter(stock):
    def lowered(module):
        rows = module.KeyRange(start=b"a" * 40, start_inclusive=True, end=b"b", end_inclusive=False)
        return taken(module._UniffiFfiConverterTypeKeyRange.lower(rows))

    assert lowered(fast) == lowered(stock)


def test_a_changed_binding_keeps_its_converters(monkeypatch):
    monkeypatch.delattr(fast, "_UniffiRustBufferBuilder")
    assert not binding.speed_up()


def test_a_call_that_does_not_end_times_out():
    async def call():
        await binding._BlockingFuture()

    with pytest.raises(TimeoutError):
        binding.wait(call(), 0.01)


def test_the_limit_is_for_a_whole_call_however_often_the_binding_polls():
    async def call():
        for _ in range(100):
            progress = binding._BlockingFuture()
            threading.Timer(0.02, progress.set_result, (None,)).start()
            await progress

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        binding.wait(call(), 0.1)
    assert time.monotonic() - began < 1
