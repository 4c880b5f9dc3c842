"""Object stores: the same behaviour in a folder and over S3, and under faults."""

import secrets
import time
from collections import Counter

import pytest

from cluster.object_store import BUCKET
from fedloom.protocol.errors import UsageError
from fedloom.server.storage.objects.check import HELP, check_store
from fedloom.server.storage.objects.interface import MissingObjectError, StoreFaultError, unique
from fedloom.server.storage.objects.opening import open_objects
from fedloom.server.storage.objects.retries import RetriedObjects
from fedloom.server.store_url import StoreUrl
from support.object_store import FaultProxy


@pytest.fixture(params=["folder", "s3"])
def objects(request, tmp_path):
    if request.param == "folder":
        return open_objects(StoreUrl.parse((tmp_path / "store").as_uri()))
    s3 = request.getfixturevalue("s3")
    return open_objects(StoreUrl.parse(s3.url(f"tests/{secrets.token_hex(4)}")))


@pytest.fixture
def proxy(s3):
    made = FaultProxy(s3.endpoint)
    yield made
    made.close()


def names(objects, folder):
    return sorted(each.name for each in objects.list(folder))


def test_an_object_is_read_as_it_was_written(objects):
    """Also its ranges; and writing it again replaces it whole."""
    data = secrets.token_bytes(100_000)
    objects.put("models/a-1.0", data)
    assert objects.get("models/a-1.0") == data
    assert objects.get_range("models/a-1.0", 99_990, 10) == data[-10:]
    objects.put("models/a-1.0", b"short")
    assert objects.get("models/a-1.0") == b"short"


def test_a_range_beyond_the_end_is_a_fault(objects):
    objects.put("models/a", b"12345")
    with pytest.raises(StoreFaultError):
        objects.get_range("models/a", 3, 10)


def test_a_missing_object_is_named(objects):
    objects.put("models/other", b"1")
    with pytest.raises(MissingObjectError, match="models/none"):
        objects.get("models/none")


def test_a_listing_has_a_folder_and_no_other(objects):
    """Folders are whole segments; times are now."""
    for name in ("updates/run/1/a.0", "updates/run/1/b.0", "updates/run/10/a.0", "sums/run/1/a"):
        objects.put(name, b"1")
    assert names(objects, "updates/run/1") == ["updates/run/1/a.0", "updates/run/1/b.0"]
    assert len(names(objects, "updates")) == 3
    assert names(objects, "nothing") == []
    [found] = objects.list("sums")
    assert abs(found.modified_at - time.time()) < 60


@pytest.mark.long
def test_a_listing_of_several_pages_is_whole(objects):
    """S3 lists at most 1,000 objects at once."""
    written = [f"updates/run/1/{number:05d}" for number in range(1100)]
    for name in written:
        objects.put(name, b"")
    assert names(objects, "updates/run/1") == written
    objects.delete(written[:1000])
    assert names(objects, "updates/run/1") == written[1000:]


def test_deleting_is_repeatable(objects):
    objects.put("models/a", b"1")
    objects.delete(["models/a", "models/none"])
    objects.delete(["models/a"])
    objects.delete([])
    assert names(objects, "models") == []


def test_the_check_passes_and_leaves_nothing(objects):
    steps = check_store(objects)
    assert [step.name for step in steps] == [*HELP]
    assert not any(step.error for step in steps)
    assert names(objects, "check") == []


def test_a_missing_bucket_is_reported_with_advice(s3):
    """The check ends at the first step that fails."""
    url = s3.url().replace(BUCKET, "another-bucket")
    [step] = check_store(open_objects(StoreUrl.parse(url)))
    assert step.name == "PUT"
    assert "NoSuchBucket" in step.error
    assert "that the bucket exists" in step.advice


def test_a_store_that_does_not_answer_is_a_fault():
    url = StoreUrl.parse("s3://bucket/prefix?endpoint=http://127.0.0.1:1")
    with pytest.raises(StoreFaultError, match="PUT models/a"):
        open_objects(url).put("models/a", b"1")


@pytest.mark.long
def test_faults_are_repeated_until_they_pass(s3, proxy, caplog):
    """One request in five fails, before or after it was done, and one in five is cut."""
    proxy.error_rate, proxy.cut_rate = 0.2, 0.2
    url = StoreUrl.parse(s3.url(secrets.token_hex(4), proxy.endpoint))
    objects = RetriedObjects(open_objects(url), (0.01,) * 20)
    asked = []
    objects.observe = lambda request, _seconds, *, failed: asked.append((request, failed))
    written = {unique("models/m"): secrets.token_bytes(50_000) for _ in range(40)}
    for name, data in written.items():
        objects.put(name, data)
    assert {name: objects.get(name) for name in written} == written
    assert names(objects, "models") == sorted(written)
    assert min(proxy.made[each] for each in ("error before", "error after", "cut GET")) > 0
    assert proxy.made["cut PUT"] > 0
    done = Counter(request for request, failed in asked if not failed)
    assert done == {"put": 40, "get": 40, "list": 1}
    faults = sum(failed for _, failed in asked)
    assert faults == caplog.text.count("next try in") > 10
    with pytest.raises(MissingObjectError):
        objects.get("models/none")
    assert asked[-1] == ("get", False)  # an answer
    assert "next try in" in caplog.text
    assert "a-secret-of-tests" not in caplog.text


def test_a_store_that_stays_down_is_a_fault_in_the_end(s3, proxy):
    proxy.is_down = True
    objects = RetriedObjects(open_objects(StoreUrl.parse(s3.url("", proxy.endpoint))), (0.01, 0.01))
    with pytest.raises(StoreFaultError, match="503"):
        objects.get("models/a")


def test_closing_ends_the_waits(s3, proxy):
    """A stopping server does not wait for a store that is down."""
    proxy.is_down = True
    objects = RetriedObjects(open_objects(StoreUrl.parse(s3.url("", proxy.endpoint))), (60.0,))
    objects.close()
    with pytest.raises(StoreFaultError, match="503"):
        objects.get("models/a")


@pytest.mark.parametrize(
    "text",
    [
        "s3://", "s3:///prefix", "gs://bucket/x", "file://host/x", "file:///", "/srv/store",
        "s3://bucket/x?endpoint=ftp://host", "s3://bucket?endpoint=http://a&endpoint=http://b",
        "s3://bucket?secret_access_key=hunter2", "s3://key:hunter2@bucket/x",
        "s3://bucket?endpoint=http://key:hunter2@host",
    ],
)  # fmt: skip
def test_another_form_of_the_setting_is_refused_without_quoting_it(text):
    """It might hold a secret."""
    with pytest.raises(UsageError, match="Expected") as error:
        StoreUrl.parse(text)
    assert "hunter2" not in str(error.value)


def test_the_setting_is_parsed():
    found = StoreUrl.parse("s3://bucket/a/b/?endpoint=https://s3.example.org:9000&region=eu-1")
    assert found == StoreUrl(
        bucket="bucket", prefix="a/b", endpoint="https://s3.example.org:9000", region="eu-1"
    )
    assert str(StoreUrl.parse("file:///srv/a%20b")) == "file:///srv/a b"
