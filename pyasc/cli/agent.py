"""`pyasc agent`: the daemon, a configuration checked, and what the running daemon does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from pyasc.errors import ConfigError, ConfigFault

DEFAULT_SETTINGS = Path("/etc/pyasc/agent.yaml")
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_SETTINGS = click.option(
    "--config", "settings_file", type=_FILE, default=DEFAULT_SETTINGS, show_default=True, help="The agent's own file."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")


@click.group(name="agent")
def command() -> None:
    """The daemon of a box: it runs pipelines and is configured over MQTT."""


@command.command()
@_SETTINGS
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    help="What is written to stderr; overrides the file.",
)
def run(settings_file: Path, log_level: str | None) -> None:
    """Run until SIGTERM or Ctrl-C.

    The configuration of the pipelines comes over MQTT (topic config/set) and is kept in the state folder.
    """
    from dataclasses import replace

    from pyasc.agent.control import run as run_agent
    from pyasc.agent.settings import load_settings

    settings = load_settings(settings_file)
    run_agent(replace(settings, log_level=log_level) if log_level else settings)


@command.command(short_help="Name every fault of a configuration.")
@click.argument("file", type=_FILE)
@click.option(
    "--model-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the models; without it their presence is not checked.",
)
@_JSON
@click.pass_context
def check(context: click.Context, file: Path, model_dir: Path | None, as_json: bool) -> None:
    """Check a configuration (it has `pipelines`), or else the agent's own file, and name every fault by its path.

    Works offline, with the plugins that are installed here. What only the box can tell (its devices, whether its models load) is
    checked when it is applied.
    """
    faults = _faults_of(file, model_dir)
    if as_json:
        report = [{"path": fault.path, "message": fault.message} for fault in faults]
        click.echo(json.dumps({"ok": not faults, "errors": report}, indent=1))
    else:
        for fault in faults:
            click.echo(_fault_line(*fault))
        if not faults:
            click.echo("ok")
    context.exit(1 if faults else 0)


@command.command(short_help="Say what the running agent does.")
@_SETTINGS
@_JSON
@click.pass_context
def status(context: click.Context, settings_file: Path, as_json: bool) -> None:
    """Say what the running agent does: connection, configuration, pipelines, spool. Fails when none runs."""
    from pyasc.agent.settings import load_settings
    from pyasc.agent.status_file import read_status

    content = read_status(load_settings(settings_file).state_dir)
    if as_json:
        click.echo(json.dumps(content, indent=1))
    else:
        for line in _status_lines(content):
            click.echo(line)
    context.exit(0 if content["running"] else 1)


@command.command(short_help="Print the JSON Schema of a configuration.")
@click.option("--agent", "own", is_flag=True, help="Of the agent's own file instead of the configuration.")
def schema(own: bool) -> None:
    """Print the JSON Schema of the configuration document."""
    from pyasc.agent import config, settings

    click.echo(json.dumps(settings.schema() if own else config.schema(), indent=2, ensure_ascii=False))


def _faults_of(file: Path, model_dir: Path | None) -> list[ConfigFault]:
    from pyasc.agent.document import parse_document
    from pyasc.agent.settings import parse_settings

    try:
        document = parse_document(file.read_bytes())
        if "pipelines" in document:
            from pyasc.agent.assembly import check_document

            return check_document(document, model_dir=model_dir)
        parse_settings(document, file.resolve().parent)
    except ConfigError as error:
        return list(error.faults)
    return []


def _status_lines(content: dict[str, Any]) -> list[str]:
    if not content["running"]:
        return ["not running"]
    agent = content["agent"]
    told, broker, engine, spool = (agent[key] for key in ("status", "broker", "engine", "spool"))
    config, version = agent["config"] or {}, agent["running_version"]
    last = f"; last: {config['version'] or 'unreadable'} {config['state']}" if config else ""
    protocol = f", MQTT {broker['protocol']}" if broker["protocol"] else ""
    process = f", process {engine['pid']}" if engine["pid"] else ""
    lines = [
        f"box        {agent['box']}: {told['state']}{_because(told.get('reason'))}, process {content['pid']}",
        f"broker     {broker['url']}: {broker['state']}{protocol}{_because(broker['reason'])}",
        f"config     {'none' if version is None else f'version {version}'}{last}",
        *(f"           {_fault_line(**error)}" for error in config.get("errors", [])),
        f"engine     {'up' if engine['up'] else 'down'}{process}, restarted {engine['restarts']} times",
        f"spool      {spool['pending']} events wait, {spool['bytes']} bytes, {spool['dropped']} dropped"
        + _because(spool["fault"]),
    ]
    for name, pipeline in sorted(agent["pipelines"].items()):
        device = f" on {pipeline['device']}" if pipeline.get("device") else ""
        rate = f", {pipeline['fps']:.1f} frames/s" if pipeline.get("fps") is not None else ""
        lines.append(f"pipeline   {name}: {pipeline['state']}{device}{rate}{_because(pipeline.get('reason'))}")
    return lines


def _because(reason: str | None) -> str:
    return f" ({reason})" if reason else ""


def _fault_line(path: str, message: str) -> str:
    return f"{path}: {message}" if path else message
