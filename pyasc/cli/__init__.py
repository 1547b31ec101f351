"""The `pyasc` command: each verb is a module of this package and is loaded when it is called.

Exit codes: 0 done, 1 failed (one line on stderr says why), 2 usage.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys

import click

from pyasc import __version__
from pyasc.errors import PyascError

# Verb to the line that `pyasc --help` shows; the module of the same name has it as `command`.
_VERBS = {
    "agent": "The daemon: run, check a configuration, show its status.",
    "convert": "Convert a checkpoint or ONNX file to an .asc file.",
    "demo": "The main job on a shipped clip with an embedded broker.",
    "devices": "What this box has.",
    "inspect": "What an .asc file holds and where it would run.",
    "run": "Run a pipeline in the foreground, without an agent.",
    "sim": "The libraries of the simulated accelerators.",
}


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _VERBS:
            return None
        command: click.Command = importlib.import_module(f"pyasc.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_VERBS.items()))


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pyasc")
@click.option("--debug", is_flag=True, help="Show the traceback of an error, and log details to stderr.")
def cli(debug: bool) -> None:
    """Models, devices and pipelines of an edge video box."""
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.WARNING,
        format="%(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )


def main() -> None:
    """Run the command line and exit."""
    debug = "--debug" in sys.argv[1:]
    try:
        status = cli.main(prog_name="pyasc", standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(128 + signal.SIGINT)
    except click.UsageError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        error.show()
        sys.exit(1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:  # whatever a plugin or a library raises is one line too
        if debug:
            raise
        print(f"pyasc: {_one_line(error)}", file=sys.stderr)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror}" if error.filename else error.strerror
    # Names out of a hostile file must not steer the terminal.
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(str(error).split()))
    return text if isinstance(error, PyascError | OSError) else f"{type(error).__name__}: {text} (see pyasc --debug)"
