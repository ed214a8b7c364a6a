"""What all commands have in common: their list, their help, how options are read, Ctrl-C and completion."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ropewalk.cli import COMMANDS, app, command_line
from ropewalk.cli.command_line import PanelCommand, PanelGroup, Seconds, shows_colours
from ropewalk.tracking.records import RunRecord
from tests.cli.command import environment, ropewalk, ropewalk_alone, start_ropewalk
from tests.control.pretend import Pretence, controlled
from tests.patience import PATIENCE_S
from tests.tracking.store.making import created, new_store


def command_of(name: str) -> click.Command:
    found = app.get_command(click.Context(app), name)
    assert found is not None
    return found


def all_commands() -> Iterator[click.Command]:
    for name in COMMANDS:
        command = command_of(name)
        yield command
        yield from command.commands.values() if isinstance(command, click.Group) else ()


# --- the list ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_has_the_first_sentence_of_each_command(name: str) -> None:
    assert command_of(name).get_short_help_str(1000) == COMMANDS[name]


def test_each_command_has_the_common_look_and_each_option_its_words() -> None:
    for command in all_commands():
        assert isinstance(command, PanelCommand | PanelGroup), command.name
        bare = [
            each.name
            for each in command.params
            if not (getattr(each, "words", "") or getattr(each, "help", "") or getattr(each, "hidden", False))
        ]
        assert not bare, f"ropewalk {command.name} says nothing of {bare}"


@pytest.mark.parametrize("words", [["--help"], ["rnu"]])
def test_no_command_is_imported_for_the_list_or_for_a_wrong_name(words: list[str]) -> None:
    program = (
        "import contextlib, sys\n"
        "from ropewalk.cli import COMMANDS, app\n"
        "with contextlib.suppress(SystemExit):\n"
        f"    app({words})\n"
        "print([name for name in COMMANDS if f'ropewalk.cli.{name}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


# --- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [(), ("run",), ("runs", "list")])
def test_the_short_option_for_help(words: tuple[str, ...]) -> None:
    assert ropewalk(*words, "-h").stdout == ropewalk(*words, "--help").stdout != ""


def test_options_of_a_kind_share_a_box() -> None:
    text = ropewalk("run", "--help", COLUMNS="100").stdout
    boxes = text.split("╭")
    where = next(box for box in boxes if box.startswith("─ Where "))
    share = next(box for box in boxes if box.startswith("─ What each process gets "))
    assert "--engine NAME" in where and "-o, --option NAME=VALUE" in where
    assert "--cpus N" in share and "--time TIME" in share and "--workers" not in share


def test_subcommands_are_listed_in_their_order_each_with_a_whole_sentence() -> None:
    box = ropewalk("runs", "--help").stdout.partition("─ Commands ─")[2]
    rows = " ".join(line.strip("│") for line in box.splitlines()[1:-1])
    runs = command_of("runs")
    assert isinstance(runs, click.Group) and list(runs.commands)[:3] == ["logs", "pause", "continue"]
    said = [f"{name} {one.get_short_help_str(1000)}" for name, one in runs.commands.items()]
    assert rows.split() == " ".join(said).split() and all(words.endswith(".") for words in said)


@pytest.mark.parametrize("words", [[], ["run"], ["plan"], ["runs"], ["runs", "fork"]])
@pytest.mark.parametrize("columns", [40, 60, 300])
@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_help_fits_the_terminal(words: list[str], columns: int, term: str) -> None:
    # Rich took every terminal with TERM=dumb for 80 columns wide, unless LINES was set as well.
    done = ropewalk(*words, "--help", COLUMNS=str(columns), TERM=term, LINES="")
    assert done.returncode == 0 and max(map(len, done.stdout.splitlines())) <= min(columns, 120)


def test_help_has_colours_on_a_terminal_only() -> None:
    assert "\x1b[" in CliRunner().invoke(app, ["--help"], color=True, env={"TERM": "xterm", "NO_COLOR": None}).output
    assert "\x1b[" not in CliRunner().invoke(app, ["--help"], env={"TERM": "xterm", "NO_COLOR": None}).output


def test_boxes_are_drawn_with_ascii_where_the_terminal_has_nothing_else() -> None:
    done = ropewalk_alone("stack", "--help", PYTHONIOENCODING="ascii")
    assert done.returncode == 0 and "+- Options --" in done.stdout


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", [["stop", "nothing"], ["logs", "nothing"], ["runs", "show", "nothing"], ["run", "nothing.py"]]
)
def test_a_failure_begins_with_the_command_that_failed(words: list[str], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, words, env={"ROPEWALK_STORE": str(tmp_path / "runs.db")})
    named = words[:2] if words[0] == "runs" else words[:1]
    assert done.exit_code and done.stderr.startswith(f"ropewalk {' '.join(named)}: "), done.stderr


# --- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["-0.1", "nan", "soon"])
def test_seconds_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Seconds().convert(text, None, None)


@pytest.mark.parametrize(("text", "seconds"), [("0", 0.0), ("2.5", 2.5), ("inf", float("inf"))])
def test_seconds_are_a_number(text: str, seconds: float) -> None:
    assert Seconds().convert(text, None, None) == seconds


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnu"], "No such command 'rnu'. Did you mean 'run'?"),
        (["runs", "lst"], "No such command 'lst'. Did you mean 'list'?"),
        (["ps", "--jsn"], "Did you mean --json?"),
        (["stop"], "Missing argument 'PROGRAM'."),
        (["search", "a.py:f"], "Missing option '--metric'."),
        (["search", "a.py:f", "--metric", "m", "--space", "{}"], "--space {}: there is no such file"),
        (["plan", "--recompute", "alwys"], "'alwys' is not one of 'auto', 'always', 'never'"),
        (["logs", "--lines", "-1"], "Invalid value for '--lines' / '-n': -1 is not in the range x>=0."),
        (["report", "x", "--record", "nan"], "Invalid value for '--record': nan is not a number of seconds."),
    ],
)
def test_wrong_usage_is_named(words: list[str], said: str) -> None:
    done = ropewalk(*words)
    told = done.stderr.replace("'", "")  # versions of click differ in what they quote
    assert done.returncode == 2 and done.stdout == "" and said.replace("'", "") in told


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


def test_ctrl_c_ends_a_command_with_130_and_without_a_word(tmp_path: Path) -> None:
    command = start_ropewalk("ps", "--watch", folder=tmp_path)
    assert command.stdout and command.stdout.readline()
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate()
    assert (command.returncode, errors) == (130, "")


# --- completion -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("ropewalk ru", ["run", "runs"]),
        ("ropewalk run --max", ["--max-restarts"]),
        ("ropewalk runs del", ["delete"]),
        ("ropewalk --ver", ["--version"]),
    ],
)
def test_words_are_completed(line: str, words: list[str]) -> None:
    last = str(len(line.split()) - 1)
    done = ropewalk(_ROPEWALK_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=last)
    assert done.stdout.splitlines() == [f"plain,{word}" for word in words]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_is_shown(shell: str) -> None:
    done = ropewalk("--show-completion", shell)
    assert done.returncode == 0 and f"_ROPEWALK_COMPLETE={shell}_complete" in done.stdout


# --- scripts that use click -------------------------------------------------------------------------------------------


def test_a_script_finds_no_command_of_click_around_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import click\n"
        "print(click.get_current_context(silent=True))\n"
        "@click.command()\n"
        "@click.option('--seed', type=int)\n"
        "def main(seed): print(seed, click.get_current_context().parent)\n"
        "main()\n"
    )
    done = ropewalk("run", "train.py", "--", "--seed", "7", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "None\n7 None\n"), done.stderr


def test_an_exception_of_click_that_leaves_a_script_is_an_error_of_the_script(tmp_path: Path) -> None:
    # Such an exception must not end `ropewalk run` as if it came from its own command, with this code and no word.
    (tmp_path / "leave.py").write_text("import click\nraise click.exceptions.Exit(0)\n")
    done = ropewalk("run", "leave.py", folder=tmp_path)
    assert done.returncode == 1 and done.stderr.startswith("Traceback")


# --- standard streams -------------------------------------------------------------------------------------------------


def in_a_shell(redirection: str, *arguments: str, folder: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a shell does that closes or redirects one of its streams."""
    line = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "ropewalk", *arguments]
    return subprocess.run(
        line, cwd=folder, env=environment(**changes), capture_output=True, text=True, timeout=PATIENCE_S
    )


def test_a_reader_that_leaves_ends_a_command_without_a_word(tmp_path: Path) -> None:
    # As `ropewalk logs -f | head -1`: it said "[Errno 32] Broken pipe", and again at the end of the interpreter.
    target, log = Pretence("walk-head"), tmp_path / "log"
    log.write_text("first\n")
    target.files = {"actor.0": log}
    with controlled(target):
        command = start_ropewalk("logs", "walk-head", "--follow", folder=tmp_path)
        assert command.stdout and command.stderr
        assert command.stdout.readline() == "[actor.0] first\n"
        command.stdout.close()
        with log.open("a") as file:
            file.write("second\n")
        assert command.stderr.read() == ""
        assert command.wait(PATIENCE_S) == 1
        command.stderr.close()


@pytest.mark.parametrize("words", [["--help"], ["explain", "PoolClosed"], ["ps", "--json"]])
def test_an_output_that_takes_no_more_ends_a_command_with_one_sentence(words: list[str], tmp_path: Path) -> None:
    """On a full disk, each command ended with sixty lines of traceback through click."""
    done = in_a_shell("> /dev/full", *words, folder=tmp_path)
    assert (done.returncode, done.stderr) == (1, "ropewalk: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("redirection", [">&-", "| true"])
def test_the_error_of_a_script_is_shown_though_nobody_reads_its_output(tmp_path: Path, redirection: str) -> None:
    source = "import sys, time\nif sys.stdout: print('x' * 10)\ntime.sleep(0.3)\nraise KeyError('lost')\n"
    (tmp_path / "s.py").write_text(source)
    done = in_a_shell(redirection, "run", "s.py", folder=tmp_path, PYTHONUNBUFFERED="")
    assert "KeyError: 'lost'" in done.stderr and "AttributeError" not in done.stderr


def test_without_a_standard_input_nothing_is_asked(tmp_path: Path) -> None:
    with new_store(tmp_path) as store:
        store.apply([RunRecord("a1", created(name="brisk-otter"))])
        where = store.where
    done = in_a_shell("<&-", "runs", "delete", "a1", "--store", where, folder=tmp_path)
    assert done.returncode == 2 and "without a terminal to ask on, say --yes" in done.stderr


def test_letters_that_the_terminal_lacks_are_escaped(tmp_path: Path) -> None:
    with controlled(Pretence("walk-→")):
        done = ropewalk_alone("ps", "walk-", PYTHONIOENCODING="latin-1")
    assert done.returncode == 0 and "walk-\\u2192 running" in done.stdout and done.stderr == ""


def test_a_script_writes_its_letters_as_under_python(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("print(__import__('sys').stdout.errors)\n")
    assert ropewalk_alone("run", "s.py", folder=tmp_path, PYTHONIOENCODING="ascii").stdout == "strict\n"


@pytest.mark.parametrize(("no_color", "shown"), [("", True), ("1", False)])
def test_colours_are_for_terminals_unless_none_are_wanted(
    monkeypatch: pytest.MonkeyPatch, no_color: str, shown: bool
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    assert not shows_colours()
    monkeypatch.setattr(command_line, "is_terminal", lambda _: True)
    assert shows_colours() == shown
