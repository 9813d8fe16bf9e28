"""Folders on disk and behind an S3 API: what is written is read, and nothing secret is shown."""

from __future__ import annotations

import contextlib
import stat
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from bspauc_spark import BSPAUCModel
from bspauc_spark.errors import InvalidParamError, shown, without_credentials
from bspauc_spark.flavor import plain
from bspauc_spark.rows import storage
from bspauc_spark.rows.storage import DiskFolder, Folder, StoreFolder, folder
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
        ("https://secret@host/a", "https://host/a"),
        ("wasbs://container@account.blob.core.windows.net/a", "wasbs://container@account.blob.core.windows.net/a"),
        ("/mnt/a?sv=2020&sig=secret%3D", "/mnt/a?sv=2020&sig=…"),
        ("AccountName=a;AccountKey=sec/ret==;EndpointSuffix=b", "AccountName=a;AccountKey=…;EndpointSuffix=b"),
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
        ("https://token@host/api failed.", "https://host/api failed."),
        ("open('s3://key:secret@bucket/a?x=1', 'r')", "open('s3://bucket/a', 'r')"),
        ("s3:/key:secret/bucket: no such folder", "s3:/…: no such folder"),
        ("abfss://container@account/a is not there", "abfss://container@account/a is not there"),
        (
            "GET 'https://a.blob.core.windows.net/c/x?sig=secret&sv=1' failed",
            "GET 'https://a.blob.core.windows.net/c/x' failed",
        ),
        ("(https://host/a?token=sec,ret).", "(https://host/a)."),
        ("see https://host/a?x=1, https://host/b?y=2.", "see https://host/a, https://host/b."),
        ("abfss://box@account/a and abfss://box:secret@account/a", "abfss://box@account/a and abfss://account/a"),
        ("AccountName=a;AccountKey=secret==;Suffix=b", "AccountName=a;AccountKey=…;Suffix=b"),
        (
            "BlobEndpoint=https://a/;SharedAccessSignature=sv=1&ss=b&sig=secret&se=2",
            "BlobEndpoint=https://a/;SharedAccessSignature=…",
        ),
        (
            "Endpoint=sb://a;SharedAccessKeyName=root;SharedAccessKey=secret=",
            "Endpoint=sb://a;SharedAccessKeyName=root;SharedAccessKey=…",
        ),
        ("/c/x?se=2030&sig=secret%2F and password = 'secret'", "/c/x?se=2030&sig=… and password = …"),
        ("AWS_SECRET_ACCESS_KEY=secret x-amz-security-token=secret", "AWS_SECRET_ACCESS_KEY=… x-amz-security-token=…"),
        ("sigma=0.3, tokenizer=words, key=3", "sigma=0.3, tokenizer=words, key=3"),
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


class Refusing(pafs.FileSystemHandler):
    """A file system that does what ``raising`` says."""

    def __init__(self, raising: Exception) -> None:
        self.raising = raising

    def _fail(self, *_: object, **__: object) -> Any:
        raise self.raising

    get_type_name = normalize_path = get_file_info = get_file_info_selector = create_dir = delete_dir = _fail
    delete_dir_contents = delete_root_dir_contents = delete_file = move = copy_file = _fail
    open_input_stream = open_input_file = open_output_stream = open_append_stream = _fail


def on_store(handler: pafs.FileSystemHandler, location: str = "gs://anonymous@bucket/a") -> StoreFolder:
    place = StoreFolder(location)
    place._store = pafs.PyFileSystem(handler)
    return place


SIGNED = "GetProperties failed for 'https://account.blob.core.windows.net/box/a?sig=SECRET&sv=2020'. Azure Error: []"


@pytest.mark.parametrize("raised", [OSError(SIGNED), PermissionError(13, SIGNED), FileNotFoundError(2, SIGNED)])
def test_what_storage_says_is_passed_on_without_signatures(
    raised: OSError, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_REMOVAL_SECONDS", 0.1)
    place = on_store(Refusing(raised), "abfss://box@account.dfs.core.windows.net/a?sv=2020&sig=SECRET")
    uses: list[Callable[[], object]] = [place.names, lambda: place.open("x"), lambda: place.write("x", b"")]
    uses += [lambda: place.nearby(["x"]).__enter__()]
    for use in uses:
        with pytest.raises(type(raised)) as caught:
            use()
        said = "".join(traceback.format_exception(caught.value)) + storage.reason(caught.value) + repr(caught.value)
        assert "GetProperties failed for 'https://account.blob.core.windows.net/box/a'." in said
        assert caught.value.errno == raised.errno
        assert "SECRET" not in said
    place.remove()
    assert isinstance(raised, FileNotFoundError) == (not caplog.records)
    assert "SECRET" not in caplog.text
    assert storage.reason(raised) == SIGNED.replace("?sig=SECRET&sv=2020", "")


class LikeGcs(Refusing):
    """As pyarrow's file system for gs:// removes a folder: without errno, where nothing has the prefix."""

    def __init__(self, objects: set[str]) -> None:
        super().__init__(OSError("No such directory: bucket/a"))
        self.objects = objects
        self.refusals = 0

    def delete_dir(self, path: str) -> None:
        inside = {name for name in self.objects if name.startswith(f"{path}/")}
        if not inside:
            self.refusals += 1
            raise self.raising
        if "bucket/a/kept" in inside:
            raise OSError("google::cloud::Status(UNAVAILABLE: later)")
        self.objects -= inside

    def get_file_info(self, paths: list[str]) -> list[pafs.FileInfo]:
        there = [any(f"{name}/".startswith(f"{path}/") for name in self.objects) for path in paths]
        kinds = [pafs.FileType.Directory if found else pafs.FileType.NotFound for found in there]
        return [pafs.FileInfo(path, kind) for path, kind in zip(paths, kinds, strict=True)]


def test_a_folder_of_gs_that_is_not_there_is_removed_at_once_and_without_a_word(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    gcs = LikeGcs({"bucket/a/x", "bucket/ab"})
    place = on_store(gcs)
    place.remove()
    assert gcs.objects == {"bucket/ab"}
    place.remove()
    assert (gcs.refusals, caplog.records) == (1, [])
    gcs.objects.add("bucket/a/kept")
    monkeypatch.setattr(storage, "_REMOVAL_SECONDS", 0.1)
    place.remove()
    assert [record.getMessage() for record in caplog.records] == [
        "gs://anonymous@bucket/a was not removed: google::cloud::Status(UNAVAILABLE: later). Delete it by hand."
    ]


@pytest.mark.parametrize(
    "location",
    [
        "abfss://container:c2VjcmV0@account.dfs.core.windows.net/a",
        "abfs://account:c2VjcmV0@container/a",
        "abfss://container:sec/ret@account.dfs.core.windows.net/a",
        "abfss://:c2VjcmV0@account.dfs.core.windows.net/container",
    ],
)
def test_an_account_key_in_a_uri_which_would_be_ignored_is_refused_with_what_works(location: str) -> None:
    with pytest.raises(
        InvalidParamError, match=r"holds a key, which pyarrow ignores.*\?sv=…&sig=….*client_secret="
    ) as caught:
        folder(location)
    assert "c2VjcmV0" not in str(caught.value)
    assert "sec/ret" not in str(caught.value)


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
