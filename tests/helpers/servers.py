"""Real servers for tests: on loopback, on a free port, ended with the test."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyspark


@dataclass(frozen=True)
class Server:
    """A server that answers at ``url``."""

    url: str
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        """End it and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def serve(command: list[str], ready: str, log: Path, module: str = "mlflow") -> Iterator[Server]:
    """``<module> <command> --host 127.0.0.1 --port <free>``, once ``ready`` answers below its address."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with urllib.request.urlopen(url + ready, timeout=2) as answer:
            return bool(answer.status == 200)

    command = [sys.executable, "-m", module, *command, "--host", "127.0.0.1", "--port", str(port)]
    with _running(url, command, answers, log) as server:
        yield server


@contextlib.contextmanager
def _running(
    url: str,
    command: list[str],
    answers: Callable[[], bool],
    log: Path,
    environment: Mapping[str, str] | None = None,
    seconds: float = 90,
) -> Iterator[Server]:
    """The command as a server, from when it answers, in the folder of its log, until it is no longer needed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=log.parent,
            env={**os.environ, "PATH": path, **(environment or {})},
        )
    server = Server(url, process)
    try:
        _wait(server, answers, log, seconds)
        yield server
    finally:
        server.stop()


def _wait(server: Server, answers: Callable[[], bool], log: Path, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert server.process.poll() is None, log.read_text()[-2000:]
        with contextlib.suppress(OSError, urllib.error.URLError):
            if answers():
                return
        time.sleep(0.2)
    raise AssertionError(f"{server.url} did not answer in {seconds:g} s:\n{log.read_text()[-2000:]}")


@contextlib.contextmanager
def connect_server(folder: Path, master: str, settings: Mapping[str, str]) -> Iterator[str]:
    """A server of Spark Connect whose working and temporary folders are its own; its address for clients."""
    port, temporary = free_port(), folder / "temporary"
    temporary.mkdir()
    own = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.local.dir": str(temporary),
    }
    given = [part for name, value in {**settings, **own}.items() for part in ("--conf", f"{name}={value}")]
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    command = [submit, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", master]
    java = ["--driver-java-options", f"-Djava.io.tmpdir={temporary}"]

    def answers() -> bool:
        socket.create_connection(("127.0.0.1", port), 2).close()
        return True

    environment = {"TMPDIR": str(temporary), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with _running(f"sc://127.0.0.1:{port}", [*command, *java, *given], answers, folder / "log", environment) as server:
        yield server.url


@dataclass(frozen=True)
class ObjectStore:
    """A bucket behind an S3 API."""

    url: str
    log: Path

    def uri(self, path: str) -> str:
        """A location in the bucket, with all that pyarrow needs to get there."""
        endpoint = self.url.removeprefix("http://")
        return f"s3://key:hunter2@bucket/{path}?scheme=http&endpoint_override={endpoint}"

    def keys(self) -> list[str]:
        """All objects; the marks that pyarrow leaves for emptied folders do not count."""
        with urllib.request.urlopen(f"{self.url}/bucket?list-type=2") as answer:
            found = re.findall(r"<Key>(.*?)</Key>", answer.read().decode())
        return [key for key in found if not key.endswith("/")]

    def requests(self) -> int:
        """How many requests it has had."""
        return self.log.read_text().count(" HTTP/1.1")


@contextlib.contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """A real S3 API with an empty bucket, in memory."""
    log = folder / "s3.log"
    with serve([], "/moto-api/", log, module="moto.server") as server:
        urllib.request.urlopen(urllib.request.Request(f"{server.url}/bucket", method="PUT")).close()
        yield ObjectStore(server.url, log)


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[Server]:
    """A tracking server on sqlite, which hands the artifacts on."""
    stores = [
        "--backend-store-uri",
        f"sqlite:///{folder}/runs.db",
        "--artifacts-destination",
        str(folder / "artifacts"),
    ]
    with serve(["server", *stores, "--workers", "1"], "/health", folder / "server.log") as server:
        yield server
