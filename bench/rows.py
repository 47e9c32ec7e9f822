"""One measurement: what was trained how, and what came of it. Times in the unit named, memory in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

CONVTRAIN, PYTORCH = "convtrain", "PyTorch"
TIMED_EPOCHS, LEAST_EPOCHS = 50, 10  # of a plan or mode that is only timed; however slow it is


@dataclass
class Row:
    """A measurement, or in ``error`` why there is none."""

    side: str  # CONVTRAIN or PYTORCH
    name: str  # a plan, or a mode
    height: int
    width: int
    nf: int
    error: str | None = None
    epochs: int = 0
    ms_per_epoch: float | None = None
    seconds: float | None = None  # of the epochs alone
    start_seconds: float | None = None  # everything else: import, compile, set up, evaluate, export
    psnr: float | None = None  # dB, averaged weights
    psnr_u8: float | None = None  # the same, picture rounded to 8 bits
    curve: list[tuple[int, float]] = field(default_factory=list)
    skipped: int | None = None  # epochs without an update, as the gradient was not finite
    memory: int | None = None  # peak, by the program's own account
    device_memory: int | None = None  # peak increase that the driver reports, contexts included
    bandwidth_share: float | None = None  # declared bytes per second over copy bandwidth, 0 to 1
    matrix_share: float | None = None  # matrix operations of the model per second over the matrix rate, 0 to 1
    device: str = ""

    @property
    def own_convolution(self) -> bool:
        """True where PyTorch's own depthwise convolution is used: what a person would write first."""
        return self.side == PYTORCH and "toeplitz" not in self.name

    def take(self, found: Mapping[str, Any]) -> None:
        """Set every field that a measurement reports under its name."""
        for name in self.__dataclass_fields__:
            if found.get(name) is not None:
                setattr(self, name, found[name])

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        """What ``asdict`` gave, after its way through JSON."""
        return cls(**{**data, "curve": [(epoch, value) for epoch, value in data["curve"]]})


def fastest(rows: Iterable[Row]) -> Row | None:
    """The row with the least time per epoch, failed ones left out."""
    timed = [(row.ms_per_epoch, number, row) for number, row in enumerate(rows) if row.ms_per_epoch]
    return min(timed)[2] if timed else None


def affordable_epochs(wanted: int, seconds_each: float, seconds: float | None) -> int:
    """The epochs wanted if they take no longer than ``seconds``; else as many as give a time per epoch."""
    if seconds is None or wanted * seconds_each <= seconds:
        return wanted
    return min(wanted, TIMED_EPOCHS, max(LEAST_EPOCHS, int(seconds / seconds_each)))
