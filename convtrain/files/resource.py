"""What the three kinds of resource have in common once they are open."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from convtrain.files.container import Container, open_container
from convtrain.files.manifest import entry
from convtrain.files.weights import WeightLayout, read_layout

if TYPE_CHECKING:
    from typing_extensions import Self


class Resource:
    """An open resource file; close it or use it as a context manager.

    ``identity`` is the SHA-256 of the whole file, ``config`` the model's constants and hyper-parameters, ``weights``
    the layout of the weight buffer.
    """

    def __init__(self, container: Container) -> None:
        """Raises InputError for a manifest that lacks what every kind has."""
        self._container = container
        self.path: Path = container.path
        self.identity: str = container.identity
        self.config: dict[str, Any] = entry(container, "config", dict[str, Any])
        self.weights: WeightLayout = read_layout(container)

    def blob(self, name: str) -> memoryview:
        """The read-only content of a blob by its SHA-256, hash checked. Raises InputError."""
        return self._container.blob(name)

    def close(self) -> None:
        """Release the file; views that were handed out stay valid."""
        self._container.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


R = TypeVar("R", bound=Resource)


def open_resource(path: Path, kind: str, cls: type[R]) -> R:
    """Open the file as ``cls``. Raises InputError when it is damaged, of another kind, or makes no sense."""
    container = open_container(path, [kind])
    try:
        return cls(container)
    except BaseException:
        container.close()
        raise
