"""Training in PyTorch: the step, run eagerly, compiled, or replayed as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bench.modes import Mode
from bench.problem import Problem
from bench.pytorch.loss import Loss
from bench.pytorch.network import PixelMajor
from bench.pytorch.optimisers import adam, muon
from bench.pytorch.schedule import State, learning_rate, observe
from bench.pytorch.toeplitz import FeatureMajor
from bench.pytorch.weights import mix_span, split

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
WARM_UP = 3  # steps before a graph is captured: lazy initialisation and the convolution library's own tuning


class Trainer:
    """All that an epoch changes, and the epoch. ``history`` holds each epoch's mse, of the weights before its update.

    ``limit`` is the most epochs that will be trained.
    """

    def __init__(
        self, problem: Problem, target: NDArray[np.float32], mode: Mode, device: torch.device, limit: int
    ) -> None:
        torch.backends.cudnn.benchmark = True
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = mode.precision == "tf32"
        self.problem, self.mode, self.device = problem, mode, device
        planes = torch.from_numpy(target).permute(2, 0, 1).contiguous().to(device)
        network = PixelMajor if mode.depthwise == "conv" else FeatureMajor
        self._network = network(problem, DTYPES[mode.precision], device)
        self.loss = Loss(problem, planes, fused=mode.compiled)
        # float16 would flush the gradient of a mean over the picture to zero: it carries that of the sum.
        self._gradient_scale = float(planes.numel()) if mode.precision == "fp16" else 1.0

        self.weights = torch.from_numpy(problem.first_weights()).to(device).requires_grad_()
        self._flat = self.weights.detach()  # the same memory, written by updates
        self.m, self.v = torch.zeros_like(self._flat), torch.zeros_like(self._flat)
        self.momentum = torch.zeros(problem.layers, 2 * problem.nf, problem.nf, device=device)
        self.state = State.first(device)
        self.history = torch.zeros(max(limit, WARM_UP), device=device)
        self._average = torch.zeros_like(self._flat)

        self._forward: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = self._scaled_loss
        self._apply: Callable[[Tensor, Tensor], None] = self._update
        if mode.compiled:
            # Which configuration of a kernel is fastest is asked anew: the cache may be of a busier hour.
            from torch._inductor import config

            config.autotune_local_cache = False
            options: dict[str, Any] = {"dynamic": False, "fullgraph": True}
            if mode.autotune:
                options["mode"] = "max-autotune-no-cudagraphs"
            self._forward = torch.compile(self._forward, **options)
            self._apply = torch.compile(self._apply, **options)
        self._replay: Callable[[], None] = self.step

    def picture(self, weights: Tensor) -> Tensor:
        """The planes (3, H, W) that flat weights draw."""
        return self._network(split(weights, self.problem))

    def _scaled_loss(self, weights: Tensor, loss_scale: Tensor) -> tuple[Tensor, Tensor]:
        terms = self.loss(self.picture(weights))
        return terms.loss * (self._gradient_scale * loss_scale), terms.mse.detach()

    def gradient(self) -> tuple[Tensor, Tensor]:
        """The mse and the gradient of the scaled loss, flat."""
        loss, mse = self._forward(self.weights, self.state.loss_scale)
        return mse, torch.autograd.grad(loss, self.weights, torch.ones_like(loss))[0]

    def _update(self, mse: Tensor, gradient: Tensor) -> None:
        """Adam, Muon, schedule, in place; nothing moves where the gradient is not finite."""
        problem, state, mix = self.problem, self.state, mix_span(self.problem)
        g = gradient / (self._gradient_scale * state.loss_scale)
        applied = torch.isfinite(g.sum()) & torch.isfinite(mse)
        state.epoch.add_(1)
        lr = learning_rate(problem, state)
        for part in (slice(0, mix.start), slice(mix.stop, None)):
            direction, m, v = adam(g[part], self.m[part], self.v[part], state.step + 1)
            self.m[part] = torch.where(applied, m, self.m[part])
            self.v[part] = torch.where(applied, v, self.v[part])
            self._flat[part] = torch.where(applied, self._flat[part] - lr * direction, self._flat[part])
        direction, momentum = muon(g[mix].view_as(self.momentum), self.momentum)
        self.momentum.copy_(torch.where(applied, momentum, self.momentum))
        moved = self._flat[mix] - problem.muon_scale * lr * direction.reshape(-1)
        self._flat[mix] = torch.where(applied, moved, self._flat[mix])
        self.history.index_copy_(0, state.epoch - 1, mse.view(1))
        observe(problem, state, mse, applied)

    def step(self) -> None:
        """One epoch, launched from here."""
        mse, gradient = self.gradient()
        with torch.no_grad():
            self._apply(mse, gradient)

    def prepare(self) -> None:
        """Compile, tune and capture, then start over from the first weights."""
        if self.mode.execution == "graph":
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    self.step()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self.step()
            self._replay = graph.replay
        else:
            for _ in range(WARM_UP):
                self.step()
        self.start_over()

    def start_over(self) -> None:
        """Back to the first weights, nothing learned."""
        with torch.no_grad():
            self._flat.copy_(torch.from_numpy(self.problem.first_weights()))
            for tensor, first in zip(self.state.tensors(), State.first(self.device).tensors(), strict=True):
                tensor.copy_(first)
            for tensor in (self.m, self.v, self.momentum, self.history, self._average):
                tensor.zero_()

    def train(self, epochs: int) -> None:
        """Train from the start; afterwards ``averaged`` gives the mean of the last epochs' weights."""
        window = min(self.problem.average_window, epochs)
        for epoch in range(epochs):
            self._replay()
            if epoch >= epochs - window:
                self._average.add_(self._flat, alpha=1 / window)

    def averaged(self) -> Tensor:
        return self._average
