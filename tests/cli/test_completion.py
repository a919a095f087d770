"""Completion in bash, zsh and fish: what is offered, without loading what only one command needs, and its script."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture
def offered(environment):
    """Return what a shell would offer for the last of these words, and the modules that were loaded for it."""

    def ask(*words):
        script = (
            "import sys\nfrom conformesh.cli import main\n"
            "try:\n    main()\nexcept SystemExit:\n    pass\n"
            "print(*sys.modules, file=sys.stderr)\n"
        )
        asked = {"_CONFORMESH_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": len(words) - 1}
        env = environment | {name: str(value) for name, value in asked.items()}
        done = subprocess.run(
            [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.split(), {*done.stderr.split()}

    return ask


def test_commands_are_offered_without_loading_them(offered):
    words, loaded = offered("conformesh", "ca")
    assert words == ["plain,calibrate"]
    assert "numpy" not in loaded
    assert offered("conformesh", "mesh", "re")[0] == ["plain,revoke", "plain,renew"]


def test_options_of_methods_and_files_are_offered(offered):
    assert offered("conformesh", "calibrate", "s.csv", "--bin")[0] == ["plain,--bins"]
    assert offered("conformesh", "calibrate", "sco")[0] == ["file,sco"]
    assert offered("conformesh", "calibrate", "--out", "res")[0] == ["file,res"]


@pytest.mark.parametrize(
    ("shell", "file"),
    [("bash", ".bash_completions/conformesh.sh"), ("zsh", ".zfunc/_conformesh"), ("fish", None)],
)
def test_the_script_is_shown_and_installed_once(run, tmp_path, shell, file):
    home = tmp_path / "home"
    home.mkdir()
    env = {"SHELL": f"/bin/{shell}", "HOME": str(home)}
    script = run("--show-completion", env=env).stdout
    assert "_CONFORMESH_COMPLETE" in script
    installed = home / (file or ".config/fish/completions/conformesh.fish")
    for _ in range(2):
        result = run("--install-completion", env=env)
        assert result.exit_code == 0, result.output
        assert str(installed) in result.stdout
    assert installed.read_text() == script
    if file is not None:
        (start,) = home.glob(".*rc")
        assert len(start.read_text().splitlines()) == 1


def test_another_shell_is_refused(run):
    result = run("--show-completion", env={"SHELL": "/bin/csh"})
    assert result.exit_code == 2
    assert result.stderr == "error: completion is for bash, zsh, fish; the variable SHELL names csh\n"
