"""The command ``convtrain``: one module per subcommand, and only the one that is called gets imported.

So ``convtrain run`` never touches what cooking needs, ``--help`` needs no Vulkan, and all of them start fast.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.main import get_command

from convtrain import __version__
from convtrain.cli.failures import flush_output, prepare_output, report
from convtrain.cli.interrupts import deaf_to_interrupt, leaving_on_interrupt, spoken

COMMANDS = {
    "cook": "Compile the shaders and pack them with an image into a training archive.",
    "run": "Train, checkpoint, and write the model package and the picture.",
    "render": "Draw the picture of a model package, also enlarged.",
    "export": "Write weights and other contents of a resource file for other programs.",
    "info": "Say what is in a resource file.",
    "devices": "List the Vulkan devices and what each can do.",
}
"""Every subcommand, ``convtrain.cli.<name>.<name>``, with its line in the list of commands."""


def build_app(command: str | None) -> typer.Typer:
    """The application with this one subcommand loaded and the others known by name only."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(_root)
    for name, summary in COMMANDS.items():
        app.command(name, short_help=summary)(spoken(_load(name)) if name == command else _not_loaded)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code: 0 done, 1 failed at run time, 2 bad usage or bad input."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    prepare_output()
    try:
        with leaving_on_interrupt():
            command = get_command(build_app(arguments[0] if arguments else None))
        code = command.main(arguments, prog_name="convtrain", standalone_mode=False)
        flush_output()
    except BaseException as error:
        with deaf_to_interrupt():
            return report(error)
    return code if isinstance(code, int) else 0


def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    """Fit an image with a small neural network, entirely in Vulkan compute shaders."""
    if version:
        typer.echo(f"convtrain {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


def _load(name: str) -> Callable[..., Any]:
    command: Callable[..., Any] = getattr(import_module(f"convtrain.cli.{name}"), name)
    return command


def _not_loaded() -> None:
    """Stands for a command that was not called."""
