"""Checkpoints, written by a thread of their own while the device goes on with the next epochs."""

from __future__ import annotations

from concurrent import futures
from types import TracebackType
from typing import TYPE_CHECKING

from convtrain.errors import Stopped
from convtrain.train.session import Session

if TYPE_CHECKING:
    from typing_extensions import Self


class CheckpointWriter:
    """Saves a session, one checkpoint at a time. A context manager: when it ends, so has the writing.

    ``begin`` copies the state from the device, which is all that training has to wait for; the copy is hashed, written
    and synced meanwhile. What goes wrong there is raised, as if ``begin`` had, by whichever method comes next.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread = futures.ThreadPoolExecutor(1, "checkpoint")
        self._writing: list[futures.Future[None]] = []  # one at most
        self._begun = self._done = session.epoch

    def begin(self) -> None:
        """Take the present state and start to write it, once the one before is done. Raises as ``Session.capture``."""
        self.wait()
        state = self._session.capture()
        self._writing.append(self._thread.submit(self._session.write, state))
        self._begun = state.epoch

    def check(self) -> None:
        """Raise what a finished write has to say; never waits."""
        if any(write.done() for write in self._writing):
            self.wait()

    def wait(self) -> int:
        """Wait until nothing is being written, and return the epoch of the checkpoint on disk (0: there is none)."""
        futures.wait(self._writing)  # a signal may interrupt this: what is under way is still known then
        while self._writing:
            self._writing.pop().result()
            self._done = self._begun
        return self._done

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=False)
        try:
            futures.wait(self._writing)
        except Stopped:  # a second signal: the folder must stay locked until nothing is written there any more
            futures.wait(self._writing)
            raise
        if error is None:
            self.wait()
