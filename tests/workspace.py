"""What the product tests share: a folder in which they cook and run through the command line, as a person would."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from convtrain.cli.app import main
from oracle.layout import Array, Config, pack

ROOT = Path(__file__).resolve().parent.parent
TINY = {"nf": 8, "layers": 1, "ks": 3, "kn": 4}
"""Settings of the smallest interesting model, for tests that are not about numbers."""
SMALL, SMALL_SIZE = {"nf": 16, "layers": 2, "ks": 3, "kn": 4}, (17, 14)
"""A model and picture size for tests that are. Shared, because a CPU driver compiles each new model for ten seconds."""


def command(*arguments: str | Path | int) -> list[str]:
    return [sys.executable, "-m", "convtrain", *map(str, arguments)]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what would steer convtrain, the checkout first on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CONV") and name != "nStep"}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, **(extra or {})}


def photograph(width: int, height: int, seed: int = 0) -> NDArray[np.uint8]:
    """A made-up picture (H, W, 3): smooth waves, an edge and some noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width] / max(width, height)
    phase = rng.uniform(0, 6, (3, 2))
    waves = np.stack([np.sin(7 * x + a) * np.cos(5 * y + b) for a, b in phase], axis=-1)
    picture = 0.5 + 0.3 * waves + 0.15 * (x > y)[..., None] + rng.normal(scale=0.03, size=waves.shape)
    return np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8)


@dataclass
class Workspace:
    """A folder with ``res_train`` and ``res``. ``env`` is added to the environment of commands; runs use ``plan``."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    plan: str = "auto"

    @property
    def archive(self) -> Path:
        return self.folder / "res_train" / "train.res"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "res_train" / "checkpoint.res"

    @property
    def model(self) -> Path:
        return self.folder / "res" / "model.res"

    @property
    def picture(self) -> Path:
        return self.folder / "res" / "out.png"

    def receive(self, archive: bytes) -> None:
        """Put an archive that was cooked elsewhere in place."""
        self.archive.parent.mkdir()
        self.archive.write_bytes(archive)

    def twin(self, env: Mapping[str, str] | None = None, plan: str | None = None) -> Workspace:
        """A copy beside this folder as it is now."""
        other = Workspace(self.folder.with_name(f"{self.folder.name}-twin"), dict(env or self.env), plan or self.plan)
        shutil.copytree(self.folder, other.folder)
        return other

    def start(self, *arguments: str | Path | int, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start ``convtrain`` in the folder, output piped."""
        return subprocess.Popen(
            command(*arguments),
            cwd=self.folder,
            env=environment({**self.env, **(env or {})}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def convtrain(
        self, *arguments: str | Path | int, env: Mapping[str, str] | None = None, code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """Run ``convtrain`` in the folder and demand this exit code."""
        with self.start(*arguments, env=env) as process:
            out, err = process.communicate(timeout=600)
        assert process.returncode == code, f"{arguments} exited with {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def cook(self, picture: NDArray[np.uint8], *options: str, **settings: float) -> None:
        """Cook this picture; the settings go to ``--set``."""
        Image.fromarray(picture).save(self.folder / "photo.png")
        chosen = [f"--set={name}={value}" for name, value in settings.items()]
        self.convtrain("cook", "photo.png", *options, *chosen)

    def run(self, *arguments: str | int, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return self.convtrain("run", *arguments, "--plan", self.plan, "--quiet", env=env)

    def dump(self, epochs: int, *names: str) -> dict[str, NDArray[np.float32]]:
        """Run ``epochs`` more epochs and give the named buffers as they are after the last."""
        dumps = [f"--dump={name}={name}.npy" for name in names]
        self.run(epochs, *dumps)
        return {name: np.load(self.folder / f"{name}.npy") for name in names}

    def info(self, file: Path) -> dict[str, Any]:
        with redirect_stdout(io.StringIO()) as out:
            assert main(["info", str(file), "--json"]) == 0
        result: dict[str, Any] = json.loads(out.getvalue())
        return result

    def config(self) -> Config:
        return Config.of(self.info(self.archive)["config"])

    def weights(self, file: Path) -> Array:
        """The weights of an archive (seeds), checkpoint (raw) or model (averaged), flat, in WBuf's layout."""
        exported = self.folder / "weights.npz"
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            assert main(["export", str(file), "--npz", str(exported)]) == 0
        with np.load(exported) as tensors:
            return pack(dict(tensors), self.config())

    def snapshot(self) -> dict[str, bytes]:
        """Every file that cook and run wrote, by name, caches left out."""
        kept = (self.archive, self.checkpoint, self.model, self.picture)
        return {path.name: path.read_bytes() for path in kept if path.exists()}


def relative_error(found: Array, expected: Array) -> float:
    """‖Δ‖/‖expected‖; where the expected tensor is zero, zero only if the found one is as well."""
    norm = float(np.linalg.norm(expected))
    distance = float(np.linalg.norm(np.asarray(found, np.float64) - expected))
    return distance / norm if norm > 0 else distance and float("inf")


def errors_against_scalar(place: Workspace) -> dict[str, float]:
    """Relative errors of one more epoch against scalar fp32 from the same state: ``Out``, and GW by weight slot."""
    twin = place.twin(env={"CONV_NO_COOPMAT": "1"}, plan="reference")
    mine, theirs = (
        {name: values.astype(np.float64).ravel() for name, values in run.dump(1, "GW", "Out").items()}
        for run in (place, twin)
    )
    errors = {"Out": relative_error(mine["Out"], theirs["Out"])}
    for slot in place.info(place.archive)["weights"]["slots"]:
        part = slice(slot["offset"], slot["offset"] + int(np.prod(slot["shape"])))
        errors[slot["name"]] = relative_error(mine["GW"][part], theirs["GW"][part])
    return errors
