"""Folders on disk and behind an S3 API: what is written is read, and nothing secret is shown."""

from __future__ import annotations

import contextlib
import stat
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from bspauc_spark import BSPAUCModel
from bspauc_spark.errors import InvalidParamError, without_credentials
from bspauc_spark.flavor import plain
from bspauc_spark.rows import storage
from bspauc_spark.rows.storage import DiskFolder, Folder, folder, shown
from bspauc_spark.serving import Predictor
from tests.helpers.servers import ObjectStore, object_store

FIXTURE = Path(__file__).parents[1] / "fixtures" / "model-format-1" / "mlp" / "local"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture(params=["disk", "file URI", "s3"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Folder:
    if request.param == "s3":
        return folder(request.getfixturevalue("store").uri("some/where")).new("bspauc-")
    return folder(str(tmp_path) if request.param == "disk" else f"file://{tmp_path}")


def test_what_is_written_is_read_listed_and_deleted(empty: Folder) -> None:
    assert empty.names() == []
    empty.write("b", b"second")
    empty.write("a", b"")
    empty.write("a", b"first")
    assert empty.names() == ["a", "b"]
    assert (empty.read("a"), empty.read("b")) == (b"first", b"second")
    with empty.open("b") as file:
        file.seek(3)
        assert file.read() == b"ond"
    empty.delete("a")
    empty.delete("a")
    assert empty.names() == ["b"]
    with pytest.raises(FileNotFoundError):
        empty.read("a")


def test_a_child_is_apart_and_goes_with_its_parent(empty: Folder) -> None:
    child = empty.child("mailbox").child("1")
    child.create()
    child.write("a", b"x")
    empty.write("b", b"y")
    assert empty.names() == ["b"]
    again = folder(child.location)
    assert again.read("a") == b"x"
    child.remove()
    child.remove()
    assert again.names() == []
    assert empty.names() == ["b"]
    other = empty.new("bspauc-")
    other.write("c", b"z")
    assert other.location != empty.new("bspauc-").location
    empty.remove()
    assert other.names() == empty.names() == []


def test_files_are_nearby_while_they_are_needed_and_copies_are_gone_then(
    empty: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    large = bytes(range(256)) * 40_000
    empty.write("large", large)
    empty.write("other", b"not asked for")
    with empty.nearby(["large"]) as near:
        assert (near / "large").read_bytes() == large
        assert isinstance(empty, DiskFolder) or [path.name for path in near.iterdir()] == ["large"]
    assert list(temporary.iterdir()) == []


def test_files_on_disk_are_the_owners_alone_and_a_failed_write_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = DiskFolder(tmp_path).new("bspauc-")
    assert stat.S_IMODE(disk.path.stat().st_mode) == 0o700
    disk.write("a", b"secret")
    assert stat.S_IMODE((disk.path / "a").stat().st_mode) == 0o600
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        disk.write("b", b"x")
    assert disk.names() == ["a"]


def test_a_folder_goes_although_somebody_still_writes_to_it(tmp_path: Path) -> None:
    disk, began = DiskFolder(tmp_path).new("bspauc-"), threading.Event()
    for number in range(2000):
        (disk.path / str(number)).touch()

    def write() -> None:
        until = time.monotonic() + 1
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                disk.write(uuid.uuid4().hex, b"")
                began.set()

    thread = threading.Thread(target=write)
    thread.start()
    assert began.wait(5)
    disk.remove()
    thread.join()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_stays_is_named(
    mounted: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(storage, "_REMOVAL_SECONDS", 0.2)
    busy = mounted("size=40k")
    DiskFolder(busy).remove()
    assert [record.getMessage() for record in caplog.records] == [
        f"{busy} was not removed: Device or resource busy. Delete it by hand."
    ]


def test_a_small_file_is_one_request(store: ObjectStore) -> None:
    place = folder(store.uri("requests"))
    before = store.requests()
    place.write("a", b"x" * 1000)
    assert store.requests() - before == (1 if int(pa.__version__.split(".")[0]) > 19 else 3)


@pytest.mark.parametrize(
    ("location", "wanted"),
    [
        ("/a/b", "/a/b"),
        ("s3://key:secret@bucket/a?endpoint_override=x&token=y", "s3://bucket/a"),
        ("abfss://container@account.dfs.core.windows.net/a?sas=y", "abfss://container@account.dfs.core.windows.net/a"),
        ("gs://anonymous@bucket/a", "gs://anonymous@bucket/a"),
        ("hdfs://host:8020/a?user=b", "hdfs://host:8020/a"),
        ("file:///a/b", "file:///a/b"),
        # A key that was pasted as it is.
        ("s3://key:sec/ret@bucket/a", "s3://bucket/a"),
        ("s3://key:sec?ret@bucket/a", "s3://bucket/a"),
        ("s3://key:sec#ret@bucket/a", "s3://bucket/a"),
        ("s3://key:sec[ret@bucket/a", "s3://bucket/a"),
        ("s3:/key:secret@bucket/a", "s3:/bucket/a"),
        ("models:/churn/1", "models:/churn/1"),
        ("s3://key:secret/bucket", "s3://…"),
    ],
)
def test_messages_show_no_credentials(location: str, wanted: str) -> None:
    assert shown(location) == wanted


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ("no answer from http://user:secret@host:5000/api", "no answer from http://host:5000/api"),
        ("no answer from http://user:sec/ret@host:5000", "no answer from http://host:5000"),
        ("postgresql://user:sec@ret@host/runs?password=secret, twice", "postgresql://host/runs, twice"),
        ("http://host/api is down", "http://host/api is down"),
    ],
)
def test_addresses_in_a_text_lose_their_credentials(said: str, wanted: str) -> None:
    assert without_credentials(said) == wanted


@pytest.mark.parametrize(
    "location",
    ["dbfs://a/b", "ftp://user:secret@host/a", "s3://key:secret@bucket/a?tokem=secret", "s3://key:[secret@bucket/a"],
)
def test_a_uri_that_cannot_be_used_is_refused_without_its_secrets(location: str) -> None:
    with pytest.raises(InvalidParamError, match=r"dbfs|ftp|Unexpected query parameter|no URI") as caught:
        folder(location)
    assert "secret" not in str(caught.value)


def test_a_path_with_a_scheme_is_never_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for location, reason in (
        ("dbfs:/tmp/x", r"^'dbfs:/tmp/x' is no folder that can be used.*on Databricks: /Volumes/"),
        ("s3:/key:secret@bucket/x", r"^'s3:/bucket/x' lacks a slash: write s3://"),
        ("file://x", r"^'file://x' names no folder: write file:///path"),
    ):
        with pytest.raises(InvalidParamError, match=reason):
            folder(location)
    for location, wanted in (
        ("file:/a/b", "/a/b"),
        ("~/x", f"{tmp_path}/home/x"),
        ("~nobody-at-all/x", "~nobody-at-all/x"),
    ):
        place = folder(location)
        assert isinstance(place, DiskFolder)
        assert str(place.path) == wanted
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("location", ["dbfs:/models/x", "s3://key:secret@bucket/x", Path("abfss://box@account/x")])
def test_a_model_or_a_report_for_other_storage_is_refused_and_makes_no_folder_of_that_name(
    location: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = BSPAUCModel.loadLocal(FIXTURE)
    for write in (model.saveLocal, BSPAUCModel.loadLocal, model.summary.report):
        with pytest.raises(InvalidParamError, match=r"/x' is no path of this machine\. Give one") as caught:
            write(location)
        assert "secret" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_written_where_a_file_uri_or_a_tilde_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    model = BSPAUCModel.loadLocal(FIXTURE)
    served = plain(model)
    assert served is not None
    for location, place in ((f"file://{tmp_path}/a%20b", "a b"), ("~/c", "c")):
        model.saveLocal(location)
        assert (tmp_path / place / "model.json").is_file()
        BSPAUCModel.loadLocal(location)
        served.save(f"{location}-served")
        assert (tmp_path / f"{place}-served" / "steps.json").is_file()
        Predictor.load(f"{location}-served")
