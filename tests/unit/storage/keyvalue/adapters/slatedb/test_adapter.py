"""The SlateDB adapter: fencing, the writer record, bounded waits and typed errors."""

import os
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from penstock.errors import (
    NotWriter,
    StoreBusy,
    StoreCorrupt,
    StoreFull,
    StoreLocked,
    StoreUnavailable,
)
from penstock.storage.keyvalue.adapters.slatedb import adapter as adapter_module
from penstock.storage.keyvalue.adapters.slatedb import conditional_put
from penstock.storage.keyvalue.adapters.slatedb.adapter import SlateDBAdapter
from penstock.storage.keyvalue.adapters.slatedb.binding import uniffi, wait
from penstock.storage.keyvalue.adapters.slatedb.error_mapping import store_error
from penstock.storage.keyvalue.adapters.slatedb.location import parse_location
from penstock.storage.keyvalue.adapters.slatedb.reader import SlateDBReader
from penstock.storage.keyvalue.adapters.slatedb.recent_records import UNKNOWN, RecentRecords
from penstock.storage.keyvalue.adapters.slatedb.watching import Watch, has_store
from penstock.storage.keyvalue.adapters.slatedb.writer_record import (
    WriterRecord,
    decode_writer,
    encode_writer,
)
from penstock.storage.keyvalue.keys import PAYLOAD_PREFIX, WRITER_KEY
from tests.fault_proxy import FaultProxy
from tests.object_stores import s3_endpoint, s3_keys, s3_url


@pytest.fixture
def location(tmp_path):
    return parse_location(urlsplit(f"slatedb+file://{tmp_path}/store?lease_ms=600000"))


@pytest.fixture
def opened():
    adapters: list[SlateDBAdapter] = []

    def open_(location, **options):
        adapter = SlateDBAdapter(location, id=f"{len(adapters):016x}", **options)
        adapters.append(adapter)
        return adapter

    yield open_
    for adapter in adapters:
        adapter.close()


@pytest.fixture
def proxy(monkeypatch):
    monkeypatch.setattr(conditional_put, "_checked", set())
    proxy = FaultProxy(s3_endpoint())
    yield proxy
    proxy.close()


def on_s3(proxy, **settings):
    return parse_location(urlsplit(s3_url(proxy.endpoint, **settings)))


def payload(offset):
    return PAYLOAD_PREFIX + offset.to_bytes(8)


class TestRecords:
    def test_reads_see_the_last_write_and_survive_reopening(self, location):
        adapter = SlateDBAdapter(location, id="1")
        adapter.write({b"a": b"1", b"b": b"2", b"c": b"3"}, (), sync=False)
        adapter.write({b"b": None}, [(b"c", b"d")], sync=True)
        for _ in range(2):
            assert adapter.get_many([b"a", b"b", b"c"]) == [b"1", None, None]
            assert list(adapter.scan(b"a", b"z")) == [(b"a", b"1")]
            adapter.close()
            adapter = SlateDBAdapter(location, id="2")
        adapter.close()

    def test_scans_cross_the_pages_of_the_binding_in_both_directions(self, location, opened):
        adapter = opened(location)
        keys = [b"k%05d" % number for number in range(3000)]
        adapter.write(dict.fromkeys(keys, b"v"), (), sync=True)
        assert [key for key, _ in adapter.scan(b"k", b"l")] == keys
        assert [key for key, _ in adapter.scan(b"k", b"l", reverse=True)] == keys[::-1]
        assert len(adapter.values(keys[1], keys[-1])) == 2998

    def test_a_range_of_payloads_is_removed(self, location, opened):
        adapter = opened(location)
        adapter.write({payload(n): b"p" for n in range(10)}, (), sync=True)
        adapter.write({payload(9): b"new"}, [(payload(2), payload(10))], sync=True)
        kept = [(payload(0), b"p"), (payload(1), b"p"), (payload(9), b"new")]
        assert list(adapter.scan(payload(0), payload(99))) == kept
        assert [adapter.get(payload(n)) for n in (1, 2, 9)] == [b"p", None, b"new"]

    @pytest.mark.parametrize("folder", ["compacted", "manifest"])
    @pytest.mark.parametrize("part", [0.0, 0.5])
    def test_an_object_that_was_cut_is_damage(self, location, folder, part):
        adapter = SlateDBAdapter(location, id="1")
        adapter.write({b"k%d" % n: os.urandom(100) for n in range(100)}, (), sync=True)
        wait(adapter._db.flush_with_options(adapter_module._MEMTABLE))
        adapter.close()
        for path in Path(location.path, "store", folder).iterdir():
            os.truncate(path, int(part * path.stat().st_size))
        with pytest.raises(StoreCorrupt, match="damaged"):
            list(SlateDBReader(location).scan(b"k", b"l"))

    @pytest.mark.parametrize("recent_bytes", [0, 1000, 10**9])
    def test_many_keys_are_read_alike_from_the_cache_and_by_scans(
        self, location, opened, recent_bytes
    ):
        adapter = opened(location)
        adapter._recent._max_bytes = recent_bytes
        adapter.write({payload(n): b"%d" % n for n in range(40) if n % 7}, (), sync=True)
        for step in (1, 2, 3, 30):
            keys = [payload(n) for n in range(0, 40, step)][::-1]
            expected = [b"%d" % n if n % 7 else None for n in range(0, 40, step)][::-1]
            assert adapter.get_many(keys) == expected

    def test_recent_records_forget_the_oldest(self):
        recent = RecentRecords(520)
        recent.update({b"a": b"1", b"b": None})
        assert recent.get(b"a") == b"1"
        assert recent.get(b"b") is None
        recent.update({b"a": b"2", b"c": bytes(200)})
        assert recent.get(b"b") is UNKNOWN
        assert recent.get(b"a") == b"2"


class TestWriters:
    def test_a_second_writer_fences_the_first(self, location, opened):
        lost = threading.Event()
        first = opened(location, on_lost=lost.set)
        first.write({b"a": b"1"}, (), sync=True)
        first.check()
        second = opened(location, take_over=True)
        with pytest.raises(OSError, match="Another server"):
            first.write({b"a": b"2"}, (), sync=True)
        assert lost.is_set()
        with pytest.raises(NotWriter):
            first.check()
        assert second.get(b"a") == b"1"

    def test_an_idle_writer_notices_that_it_is_fenced(self, location, opened):
        lost = threading.Event()
        opened(replace(location, lease_ms=500), on_lost=lost.set)
        opened(location, take_over=True)
        assert lost.wait(60)

    def test_a_writer_that_could_not_commit_for_a_lease_does_not_answer(
        self, location, opened, monkeypatch
    ):
        adapter = opened(location)
        adapter.check()
        later = adapter._valid_until + 1
        monkeypatch.setattr("time.monotonic", lambda: later)
        with pytest.raises(NotWriter, match="600 s"):
            adapter.check()

    def test_only_a_renewal_extends_the_lease(self, location, opened, monkeypatch):
        adapter = opened(location)
        lease_s, renewal = location.lease_ms / 1000, adapter._record.renewal
        ends = adapter._renewed_at + lease_s
        monkeypatch.setattr("time.monotonic", lambda: ends - lease_s * 0.9)
        adapter.write({b"a": b"1"}, (), sync=True)
        assert adapter._record.renewal == renewal
        # Others have seen no renewal, so one of them may be writing from now on.
        monkeypatch.setattr("time.monotonic", lambda: ends + 1)
        with pytest.raises(NotWriter):
            adapter.check()

    def test_a_store_with_a_live_writer_is_locked(self, location, opened):
        short = replace(location, lease_ms=600)
        opened(short, url="http://one:8080")
        with pytest.raises(StoreLocked, match=r"http://one:8080.*reader=true"):
            SlateDBAdapter(short, id="other")

    def test_a_released_store_opens_again_at_once(self, location, opened):
        SlateDBAdapter(location, id="1").close()
        opened(location)

    def test_the_golden_record_is_on_the_page_of_formats(self):
        record = WriterRecord(
            "00112233", "http://a:8080", "a", 7, 1, 2000, processes="boot pid:[1]"
        )
        value = encode_writer(record)
        assert decode_writer(value) == record
        assert value.hex() in Path("docs/formats.md").read_text("utf-8").replace(" ", "")

    def test_the_record_of_an_earlier_version_is_read(self):
        value = "97a83030313132323333ad687474703a2f2f613a38303830a1610701cd07d0c26cd08604"
        record = decode_writer(bytes.fromhex(value))
        assert record == WriterRecord("00112233", "http://a:8080", "a", 7, 1, 2000)
        assert not record.is_gone

    def test_a_process_of_another_container_is_not_known_to_have_ended(self, location, opened):
        first = opened(replace(location, lease_ms=600))
        ended = 2**22 + 1  # Above the highest process id.
        assert replace(first._record, pid=ended).is_gone
        for processes in ("another namespace", ""):
            assert not replace(first._record, pid=ended, processes=processes).is_gone

    def test_a_silent_writer_is_replaced(self, location, opened):
        first = opened(location)
        # As a writer that stopped: it neither renews nor releases its record.
        stopped = replace(first._record, host="elsewhere", lease_ms=1)
        first.write({WRITER_KEY: encode_writer(stopped)}, (), sync=True)
        opened(location)

    def test_the_writer_is_known_without_touching_it(self, location, opened):
        watch = Watch(location)
        assert watch.writer() is None
        opened(location, url="http://one:8080")
        found = watch.writer()
        watch.close()
        assert found is not None
        assert found.url == "http://one:8080"
        assert not found.is_gone


class TestObjectStore:
    def test_a_disk_cache_saves_requests_after_a_restart(self, proxy, tmp_path):
        without = on_s3(proxy, lease_ms=600_000)
        cached = replace(without, cache_path=str(tmp_path / "cache"))
        keys = [b"k%05d" % number for number in range(3000)]
        adapter = SlateDBAdapter(cached, id="1")
        adapter.write({key: os.urandom(500) for key in keys}, (), sync=True)
        wait(adapter._db.flush_with_options(adapter_module._MEMTABLE))
        adapter.close()
        read: list[str] = []

        def record_reads_of_tables(method, path):
            if method == "GET" and "/compacted/" in path:
                read.append(path)

        proxy.fault = record_reads_of_tables
        requests = {}
        for location in (without, cached):
            read.clear()
            adapter = SlateDBAdapter(location, id="2")
            assert [key for key, _ in adapter.scan(b"k", b"l")] == keys
            requests[location] = len(read)
            adapter.close()
        assert requests[cached] < requests[without]

    def test_a_cache_that_cannot_be_used_is_refused(self, proxy, tmp_path):
        """SlateDB would silently do without it."""
        (tmp_path / "file").touch()
        location = replace(on_s3(proxy), cache_path=str(tmp_path / "file"))
        with pytest.raises(StoreUnavailable, match="cache"):
            SlateDBAdapter(location, id="1")
        assert not has_store(location)

    def test_a_cache_is_for_its_owner_only(self, proxy, tmp_path, opened):
        """It contains payloads."""
        cache = tmp_path / "new" / "cache"
        opened(replace(on_s3(proxy), cache_path=str(cache)))
        assert cache.stat().st_mode & 0o777 == 0o700

    def test_a_bucket_that_ignores_conditions_is_refused(self, proxy):
        proxy.without_conditions = True
        with pytest.raises(StoreUnavailable, match="conditional"):
            SlateDBAdapter(on_s3(proxy), id="1")

    def test_a_missing_bucket_is_named(self, proxy):
        location = replace(
            on_s3(proxy),
            bucket="missing",
            config=(
                *(pair for pair in on_s3(proxy).config if pair[0] != "bucket"),
                ("bucket", "missing"),
            ),
        )
        with pytest.raises(StoreUnavailable, match="does not exist"):
            SlateDBAdapter(location, id="1")

    @pytest.mark.parametrize(
        "status, expected, text",
        [
            (403, StoreUnavailable, "credentials"),
            (507, StoreFull, "full"),
            (503, StoreBusy, "limits requests"),
            (500, StoreUnavailable, "answers with errors"),
        ],
    )
    def test_refusals_are_typed_and_come_in_time(self, proxy, status, expected, text):
        proxy.fault = lambda method, path: status
        with pytest.raises(expected, match=text):
            SlateDBAdapter(on_s3(proxy, timeout_ms=60_000), id="1")

    def test_missing_credentials_are_not_called_wrong(self):
        asked = "Error performing PUT http://169.254.169.254/latest/api/token: 403 Forbidden"
        error = store_error("slatedb+s3://bucket/path", OSError(asked))
        assert isinstance(error, StoreUnavailable)
        assert "needs credentials, and none were found" in error.detail

    def test_opening_ends_in_time_however_slowly_the_object_store_answers(self, proxy):
        """Each answer comes before a request times out."""
        proxy.fault = lambda method, path: time.sleep(0.5)
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="timeout_ms"):
            SlateDBAdapter(on_s3(proxy, timeout_ms=1000), id="1")
        assert time.monotonic() - began < 5

    def test_a_reader_finds_no_store(self, proxy):
        with pytest.raises(StoreUnavailable, match="There is no store"):
            SlateDBReader(on_s3(proxy))

    def test_a_dropped_reply_neither_loses_nor_repeats_a_commit(self, proxy, opened):
        adapter = opened(on_s3(proxy))
        dropped: list[str] = []

        def drop_one(method, path):
            if method == "PUT" and "/wal/" in path and not dropped:
                dropped.append(path)
                return FaultProxy.DROP
            return None

        proxy.fault = drop_one
        adapter.write({b"a": b"1"}, (), sync=True)
        adapter.write({b"b": b"2"}, (), sync=True)
        assert dropped
        assert list(adapter.scan(b"a", b"c")) == [(b"a", b"1"), (b"b", b"2")]

    @pytest.mark.parametrize("problem", ["Unavailable", "Data"])
    def test_a_commit_that_is_refused_is_no_damage(self, problem):
        """The binding may not say why the object store refused the object."""
        text = f"{problem} error: wal unavailable (object store error)"
        kind = getattr(uniffi.Error, problem)
        error = store_error("slatedb+s3://bucket/path", kind(message=text))
        assert isinstance(error, StoreUnavailable)
        assert "did not accept a commit" in error.detail

    def test_all_objects_are_below_the_path(self, proxy, opened):
        """A key may be limited to it."""
        location = on_s3(proxy)

        def refuse_others(method, path):
            is_list = "?list-type=2&" in path or method == "POST"
            below = path.startswith(f"/{location.bucket}/{location.path}/")
            return None if below or is_list else 403

        proxy.fault = refuse_others
        adapter = opened(location)
        adapter.write({b"a": b"1"}, (), sync=True)
        assert adapter.get(b"a") == b"1"
        assert not [key for key in s3_keys(s3_endpoint(), location.path) if "check" in key]

    def test_a_store_exists_once_it_was_opened_for_writing(self, proxy):
        location = on_s3(proxy)
        assert not has_store(location)
        assert not proxy.methods["PUT"]
        SlateDBAdapter(location, id="1").close()
        assert has_store(location)

    def test_a_commit_that_hangs_fails_in_time(self, proxy, opened):
        adapter = opened(on_s3(proxy, timeout_ms=500))
        hung = threading.Event()
        proxy.fault = lambda method, path: hung.wait(60) and None
        with pytest.raises(OSError, match="did not answer"):
            adapter.write({b"a": b"1"}, (), sync=True)
        hung.set()
