"""Turns a settings class into the options of a command.

The fields of a pydantic model are the options: their names, types, defaults and descriptions. A
value that the model refuses becomes one line that names the option.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer
from pydantic import BaseModel, ValidationError

from shardinv.cli.errors import UsageError

S = TypeVar("S", bound=BaseModel)


def command(settings: type[S], run: Callable[[S], int]) -> Callable[..., None]:
    """A typer command with an option for each field of ``settings``.

    Parameters
    ----------
    settings
        A pydantic model. A field ``max_size`` becomes ``--max-size``, a boolean one a switch.
    run
        Called with the settings; its docstring is the command's help, what it returns the exit
        status. A `UsageError` it raises is shown as one line.
    """

    def run_command(**values: Any) -> None:
        try:
            status = run(parse(settings, values))
        except UsageError as error:
            if error.told:
                typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(2) from None
        raise typer.Exit(status)

    parameters = []
    for name, field in settings.model_fields.items():
        option = typer.Option(f"--{name.replace('_', '-')}", help=field.description)
        parameters.append(
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.get_default(call_default_factory=True),
                annotation=Annotated[field.annotation, option],
            )
        )
    run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run_command.__annotations__ = {p.name: p.annotation for p in parameters}
    run_command.__doc__ = inspect.getdoc(run)
    return run_command


def parse(settings: type[S], values: dict[str, Any]) -> S:
    """Make the settings, or say in one line what is wrong with them.

    Raises
    ------
    UsageError
        Naming each option that was refused, its value and what is expected.
    """
    try:
        return settings(**values)
    except ValidationError as error:
        raise UsageError("; ".join(map(_line, error.errors()))) from None


def _line(problem: Any) -> str:
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not problem["loc"]:
        return message
    option = "--" + str(problem["loc"][0]).replace("_", "-")
    message = message.replace("Input should be", "must be", 1)
    return f"{option} {message}, got {problem['input']!r}"
