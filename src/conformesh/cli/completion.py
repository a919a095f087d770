"""Shell completion for bash, zsh and fish: print the script, or install it where the shell looks for it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

_NAME = "conformesh"
_SHELLS = ("bash", "zsh", "fish")


def add_completion(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    """Print or install the completion script of the user's shell, and stop."""
    if not value or ctx.resilient_parsing:
        return
    shell = _shell()
    if param.name == "show_completion":
        print(_script(ctx.command, shell))
    else:
        print(f"{shell} completion is installed in {_install(_script(ctx.command, shell), shell)}; start a new shell")
    ctx.exit()


def _shell() -> str:
    shell = Path(os.environ.get("SHELL", "")).name
    if shell not in _SHELLS:
        raise ValueError(f"completion is for {', '.join(_SHELLS)}; the variable SHELL names {shell or 'none'}")
    return shell


def _script(command: Any, shell: str) -> str:
    complete = get_completion_class(shell)
    assert complete is not None
    return complete(command, {}, _NAME, f"_{_NAME.upper()}_COMPLETE").source()


def _install(script: str, shell: str) -> Path:
    home = Path.home()
    if shell == "fish":  # which reads this folder by itself
        return _write(home / ".config/fish/completions" / f"{_NAME}.fish", script)
    if shell == "bash":
        file = _write(home / ".bash_completions" / f"{_NAME}.sh", script)
        _add_line(home / ".bashrc", f"source '{file}'")
        return file
    file = _write(home / ".zfunc" / f"_{_NAME}", script)
    _add_line(home / ".zshrc", "fpath+=~/.zfunc; autoload -Uz compinit; compinit")
    return file


def _write(file: Path, script: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(script + "\n", encoding="utf-8")
    return file


def _add_line(file: Path, line: str) -> None:
    """Append a line to the shell's start file, once."""
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    if line not in before.splitlines():
        file.write_text(before + ("\n" if before and not before.endswith("\n") else "") + line + "\n", encoding="utf-8")
