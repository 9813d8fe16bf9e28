"""Spark's daemon of Python workers, which save what they covered after each task: Spark kills them in the end."""

from __future__ import annotations

import socket

import pyspark.daemon
from coverage import Coverage

_worker = pyspark.daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    try:
        return _worker(sock, authenticated)
    finally:
        if running := Coverage.current():
            running.save()


if __name__ == "__main__":
    pyspark.daemon.worker = worker
    pyspark.daemon.manager()
