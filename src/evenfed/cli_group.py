"""How commands are looked up, and how errors that are raised on purpose are told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from evenfed.core.errors import EvenfedError

if TYPE_CHECKING:
    import click


class Group(TyperGroup):
    """Turns errors into one line, or a line each where all are told at once, and exit code 2."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of a word; a misspelt one is told with one suggestion."""
        from click import UsageError

        try:
            return super().resolve_command(ctx, args)
        except UsageError as error:
            # Click 8.4 and newer suggest by themselves; Typer says it once more in the message
            if getattr(error, "possibilities", None):
                vars(error)["message"] = error.message.partition(" Did you mean")[0]
            raise

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except EvenfedError as error:
            listed = hasattr(error, "problems")
            text = str(error) if listed else " ".join(str(error).split())
            typer.echo(f"error: {text}", err=True)
            raise typer.Exit(2) from error
