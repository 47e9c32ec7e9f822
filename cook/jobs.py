"""Many compiles at once: worker processes, since the compiler's threads mostly wait for each other."""

from __future__ import annotations

import os
import pickle
import queue
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from convtrain.errors import RunError
from cook.compiler import Compiled, ShaderError, compile_shader

WORTH_A_WORKER = 6
"""Compiles that take about as long as starting one more worker (0.5 s)."""

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Job:
    """One kernel to compile: injected text, entry point, file name for diagnostics, SPIR-V profile."""

    text: str
    entry: str
    name: str
    profile: str

    def run(self) -> Compiled:
        """Compile in this process and thread. Raises ShaderError."""
        return compile_shader(self.text, self.entry, name=self.name, profile=self.profile)


def compile_all(jobs: Sequence[Job], workers: int | None = None) -> list[Compiled]:
    """Compile every job, in ``workers`` processes (None: as many as the processor and the number of jobs justify).

    The result is in the order of the jobs and does not depend on the number of workers. Raises ShaderError for the
    first job, in that order, that does not compile, and RunError when a worker dies.
    """
    if workers is None:
        workers = min(_processors(), -(-len(jobs) // WORTH_A_WORKER))
    if workers <= 1:
        return [job.run() for job in jobs]
    results: dict[int, Compiled | ShaderError | RunError] = {}
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for position in range(len(jobs)):
        waiting.put(position)
    started: list[subprocess.Popen[bytes]] = []
    arguments = (jobs, waiting, results, started)
    threads = [threading.Thread(target=_drive, args=arguments, daemon=True) for _ in range(workers)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.1)  # a signal that comes just before an endless wait would not end it
    except BaseException:  # Ctrl-C
        _drain(waiting)
        for worker in started:
            worker.kill()
        raise
    done: list[Compiled] = []
    for position in sorted(results):
        result = results[position]
        if isinstance(result, Exception):
            raise result
        done.append(result)
    return done


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _drive(
    jobs: Sequence[Job],
    waiting: queue.SimpleQueue[int],
    results: dict[int, Compiled | ShaderError | RunError],
    started: list[subprocess.Popen[bytes]],
) -> None:
    """Feed one worker process, added to ``started``, until no job is left. One that dies ends the queue for all."""
    try:
        process = _start_worker()
    except OSError as error:
        _drain(waiting)
        # Before the first position, as it is the reason why some others have no result.
        results[-1] = RunError(f"A process for the Slang compiler cannot be started: {error.strerror or error}.")
        return
    with process as worker:
        started.append(worker)
        assert worker.stdin is not None
        assert worker.stdout is not None
        position = None
        try:
            while (position := _next(waiting)) is not None:
                _send(worker.stdin, jobs[position])
                results[position] = _receive(worker.stdout)
        except (BrokenPipeError, EOFError):
            assert position is not None
            results[position] = RunError(
                f"The Slang compiler stopped working on {jobs[position].name}: cook again, or report the shader."
            )
            _drain(waiting)
        with suppress(BrokenPipeError):
            worker.stdin.close()


def _next(waiting: queue.SimpleQueue[int]) -> int | None:
    try:
        return waiting.get_nowait()
    except queue.Empty:
        return None


def _drain(waiting: queue.SimpleQueue[int]) -> None:
    while _next(waiting) is not None:
        pass


def _start_worker() -> subprocess.Popen[bytes]:
    # A plain child instead of multiprocessing: that would run the main module of whoever calls cook again.
    path = os.pathsep.join([str(Path(__file__).resolve().parent.parent), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-m", "cook.jobs"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C is the parent's to handle; its end, however it comes, closes the input
    )


def _send(stream: IO[bytes], value: object) -> None:
    data = pickle.dumps(value)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    header = stream.read(_LENGTH.size)
    if len(header) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(header)
    return pickle.loads(stream.read(length))


def _work() -> None:
    """The worker: jobs from standard input, results to standard output, until the input ends."""
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints must not mix with the results
    while True:
        try:
            job: Job = _receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            _send(results, _outcome(job))
        except BrokenPipeError:  # the parent is gone
            os._exit(1)  # without flushing what nobody reads


def _outcome(job: Job) -> Compiled | ShaderError:
    try:
        return job.run()
    except ShaderError as error:
        return error


if __name__ == "__main__":
    # The worker's classes must be those of the module that the parent pickles, not of __main__.
    from cook import jobs as _module

    _module._work()
