"""How a job ends that is ended from outside: in one line, from its first moment on. Imports nothing that takes time."""

from __future__ import annotations

import builtins
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

_ENDINGS: dict[int, str] = {signal.SIGTERM: "SIGTERM", signal.SIGINT: "Ctrl-C"}
# Set by spark-submit for the Python process that it starts.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


def failed(reason: str) -> int:
    """Say what is wrong in one line; the exit code for it."""
    print(f"error: {reason}", file=sys.stderr, flush=True)
    return 2


def begin(name: str) -> None:
    """Called by a script with its ``__name__`` before its slow imports: executors run the same Python as it does.

    Ctrl-C ends the process at once as long as nothing else listens to it: there is nothing to tidy up yet, and an
    exception amid the imports of compiled modules may come out as another.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    alone = name == "__main__" and threading.current_thread() is threading.main_thread()
    # A notebook's process is not the job's to end.
    alone = alone and not hasattr(builtins, "__IPYTHON__")
    # A job in the background of a shell ignores Ctrl-C.
    if alone and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave_at_once)


def _leave_at_once(number: int, _: object) -> NoReturn:
    _said(number)
    os._exit(128 + number)


@contextlib.contextmanager
def in_order() -> Iterator[None]:
    """SIGTERM, by which schedulers end a job, and Ctrl-C as an exit of Python, which removes staged rows on its way."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ended, over = list[int](), threading.Event()

    def leave(number: int, _: object) -> NoReturn:
        ended.append(number)
        # Whoever has no patience left sends SIGKILL.
        for one in before:
            signal.signal(one, signal.SIG_IGN)
        sys.exit(128 + number)

    # A job in the background of a shell is to go on when others are interrupted.
    heard = [one for one in _ENDINGS if signal.getsignal(one) != signal.SIG_IGN]
    before = {one: signal.signal(one, leave) for one in heard}
    if _SUBMITTED in os.environ:
        threading.Thread(target=_end_with_jvm, args=(os.getppid(), over), name="bspauc-jvm", daemon=True).start()
    try:
        yield
    except BaseException:
        if not ended:
            raise
        # Whatever it has become on its way: the JVM, which is often ended too, is no longer there to tidy up.
        _said(ended[0])
        sys.exit(128 + ended[0])
    finally:
        over.set()
        for one, handler in before.items():
            signal.signal(one, handler)


def _said(number: int) -> None:
    # Ctrl-C often ends spark-submit's JVM too, which is to hand this line on.
    with contextlib.suppress(OSError):
        failed(f"ended by {_ENDINGS[number]}.")


def _end_with_jvm(jvm: int, over: threading.Event) -> None:
    """A scheduler may end spark-submit's JVM alone; a fit in this process would train on, for nothing."""
    while not over.wait(1.0):
        if os.getppid() != jvm:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            return
