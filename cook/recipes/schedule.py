"""The schedule's rules as constants of the kernels that decide it on the device (``slang/fused/advance.slang``)."""

from __future__ import annotations

from cook.model import ModelConfig

RULES = ("warmup", "ema_decay", "improvement", "patience", "plateau_factor", "plateau_floor")


def schedule_rules(model: ModelConfig) -> dict[str, int | float]:
    """Fields of the shader's ``cfg`` by name."""
    rules = {name.upper(): getattr(model, name) for name in RULES}
    return {**rules, "LEARNING_RATE": model.lr, "WINDOW": model.average_window}
