"""The command line: a table of commands, each imported when it is used, and one error boundary."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from osmosis_ai import __version__
from osmosis_ai.cli.mode import Mode, take_mode
from osmosis_ai.errors import OsmosisError


class Command(NamedTuple):
    """A command: the function it is, as `module:attr`, and its line in the group's help."""

    target: str
    help: str


class Group(NamedTuple):
    """Commands under one word, and groups of them."""

    help: str
    commands: Mapping[str, Command | Group]


GROUPS: Mapping[str, Group] = {
    "eval": Group(
        "Evaluate a workflow and its grader on this machine.",
        {
            "run": Command("osmosis_ai.cli.eval:run", "Run an evaluation, or go on with it."),
            "list": Command("osmosis_ai.cli.runs:list_all", "List the runs of a workspace."),
            "show": Command("osmosis_ai.cli.runs:show", "Show what a run has measured."),
            "stop": Command("osmosis_ai.cli.stop:stop", "End a run that goes on elsewhere."),
        },
    ),
    "dataset": Group(
        "Look at data sets before anything runs on them.",
        {
            "validate": Command("osmosis_ai.cli.dataset:validate", "Check a data set."),
            "preview": Command("osmosis_ai.cli.dataset:preview", "Show the first rows."),
        },
    ),
    "rollout": Group(
        "Serve and check the rollouts of a workspace.",
        {
            "serve": Command("osmosis_ai.cli.serve:serve", "Serve a rollout over HTTP."),
            "check": Command("osmosis_ai.cli.rollout:check", "Say what a rollout is and lacks."),
            "outbox": Group(
                "Answers that did not reach their controllers.",
                {
                    "list": Command("osmosis_ai.cli.outbox:list_answers", "List them."),
                    "retry": Command("osmosis_ai.cli.outbox:retry", "Have them posted again."),
                    "drop": Command("osmosis_ai.cli.outbox:drop", "Erase them for good."),
                },
            ),
        },
    ),
}
"""Every command there is."""


def main(args: Sequence[str] | None = None, *, groups: Mapping[str, Group] = GROUPS) -> int:
    """Run a command line; returns its exit code: 0, 1 for an error, 2 for misuse, 130 stopped."""
    given = sys.argv[1:] if args is None else list(args)
    mode = Mode.JSON if "--json" in given else Mode.RICH
    try:
        mode, rest = take_mode(given)
        code = _root(groups).main(rest, prog_name="osmosis", standalone_mode=False, obj=mode)
        return code if isinstance(code, int) else 0
    except (OsmosisError, typer.TyperException) as error:
        return _report(error, mode, _command_name(given, groups))
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except Exception as error:
        # A fault of ours, whatever it is; readers of JSON cannot read a traceback.
        if mode is Mode.JSON:
            return _report(error, mode, _command_name(given, groups))
        error.add_note("This is a fault of osmosis-ai itself: please report it.")
        if _is_shown(error):
            return 1
        raise


def _report(error: Exception, mode: Mode, command: str) -> int:
    # On use: it brings Rich, which a command that goes well may not need.
    from osmosis_ai.cli.problem import print_problem

    return print_problem(error, mode=mode, command=command)


def _is_shown(error: Exception) -> bool:
    # On use, as above.
    from osmosis_ai.cli.problem import print_fault

    return print_fault(error)


def _command_name(args: Sequence[str], groups: Mapping[str, Group]) -> str:
    """The command that was meant, as far as it can be told: `eval run`."""
    words: list[str] = []
    here: Mapping[str, Command | Group] = groups
    for arg in args:
        found = here.get(arg)
        if found is not None:
            words.append(arg)
            here = {} if isinstance(found, Command) else found.commands
    return " ".join(words)


class _LazyGroup(TyperGroup):
    """A group that imports a command when it is used, not when it is listed."""

    targets: Mapping[str, str] = {}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ([] if ctx.resilient_parsing else ["--help"]))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name = args[0]
        if name in self.targets:
            return name, _import_command(name, self.targets[name]), args[1:]
        if name not in self.commands and not ctx.resilient_parsing:
            close = get_close_matches(name, self.commands, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"No such command {name!r}.{hint}")
        return super().resolve_command(ctx, args)


def _root(groups: Mapping[str, Group]) -> Any:
    root = _group(
        "Run, serve and measure agent workflows.", _root_options, "Read more in docs/start.md."
    )
    for name, group in groups.items():
        root.commands[name] = _sub_group(name, group)
    return root


def _sub_group(name: str, group: Group) -> Any:
    made = _group(group.help, _no_options)
    made.name = name
    targets: dict[str, str] = {}
    for word, one in group.commands.items():
        if isinstance(one, Command):
            targets[word] = one.target
            made.commands[word] = TyperCommand(word, help=one.help)
        else:
            made.commands[word] = _sub_group(word, one)
    made.targets = targets
    return made


def _group(help: str, options: Any, epilog: str | None = None) -> Any:
    app = typer.Typer(
        cls=_LazyGroup,
        help=help,
        epilog=epilog,
        add_completion=options is _root_options,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(options)
    return get_command(app)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"osmosis-ai {__version__}")
        raise typer.Exit


def _root_options(
    json: Annotated[
        bool, typer.Option("--json", help="Answer in JSON. Anywhere on the line.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Answer in plain lines. Anywhere on the line.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", "-V", is_eager=True, callback=_print_version, help="Show the version."
        ),
    ] = False,
) -> None:
    """`--json` and `--plain` are taken out before parsing, and are here for the help."""


def _no_options() -> None:
    """A group without options of its own."""


def _import_command(name: str, target: str) -> Any:
    module, _, attribute = target.partition(":")
    app = typer.Typer(add_completion=False)
    app.command(name)(getattr(import_module(module), attribute))
    return get_command(app)


if __name__ == "__main__":
    sys.exit(main())
