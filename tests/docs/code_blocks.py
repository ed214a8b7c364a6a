"""The code of our pages, run from the very text, and what it prints compared with what the page says.

A page says what is run:

    ```python                   is executed. All such blocks of a page share one namespace, in order, as a reader types
                                them into one session. If only blank lines are between it and a plain ``` block, it
                                prints that; otherwise it may print anything, and must not raise.
    ```python title="name.py"   is written to the folder in which everything runs, before anything runs. Followed by a
                                plain ``` block, it is a program with a namespace of its own, which prints that.
    ```toml title="name.toml"   is written there, too.
    ```console                  has commands, in lines that begin with `$ `, and what they print. One shell runs the
                                lines of a block, after all Python blocks of the page.
    <!-- not run: reason -->    in the line before a block: nothing runs it.
    <!-- own namespace -->      in the line before a block: it is a program of its own, and knows nothing of the others.
    <!-- any order -->          in the line before a block: its lines may come in any order.

In what a page says is printed, a line `...` stands for any number of lines, and `...` within a line for any text.
Output is what a terminal shows, standard error included. The name of the host, where it follows an @, reads `laptop`.
All pages run in one folder, in which the store of runs is (`ROPEWALK_STORE`).

One process and one session run the blocks of many pages, one after the other, since a cold start costs a second: that
process imports torch once, and so does the one from which all the others are forked (`preload`), 3 s of CPU time for
each set of modules otherwise. `test_pages.py` says which pages run when.
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)(?P<options>.*)$")
NOTE = re.compile(r"^ *<!-- (.*) -->$")
MARK = "--- "
ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A piece of code of a page.

    Attributes:
        page: the path of the page below `docs`, or that of the project.
        line: number of its first line, from 1 on.
        language: `python` or `console`; `toml` for a file.
        code: its text.
        says: what the page says that it prints, or None.
        file: the name of the file that it is, or "".
        notes: what comments in the line before it say.
    """

    page: str
    line: int
    language: str
    code: str
    says: str | None = None
    file: str = ""
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Page and line, unique."""
        return f"{self.page}:{self.line}"

    @property
    def namespace(self) -> str:
        """Blocks with the same one share their variables."""
        return self.name if self.file or "own namespace" in self.notes else self.page

    @property
    def is_run(self) -> bool:
        """Whether anything runs it, beyond writing its file."""
        if any(note.startswith("not run: ") for note in self.notes):
            return False
        return self.says is not None if self.file else self.language in ("python", "console")

    def __str__(self) -> str:
        return self.name


def blocks_of(*pages: Path) -> list[Block]:
    """The Python and console blocks of pages, in order."""
    return [block for page in pages for block in blocks_of_text(page.read_text(), name_of(page))]


def name_of(page: Path) -> str:
    """The path of a page below `docs`, or that of the project: several are called pool.md."""
    return str(page.relative_to(ROOT / "docs" if page.is_relative_to(ROOT / "docs") else ROOT))


def blocks_of_text(text: str, page: str) -> list[Block]:
    """The Python and console blocks of the text of a page, which is called `page`, and its other files."""
    lines = text.splitlines()
    found: list[Block] = []
    position = after_code = 0
    while position < len(lines):
        opening = FENCE.match(lines[position])
        if not opening:
            position += 1
            continue
        end = next(i for i in range(position + 1, len(lines)) if lines[i].strip() == "```")
        indent = len(opening["indent"])
        content = "".join(line[indent:] + "\n" for line in lines[position + 1 : end])
        between = "".join(lines[after_code:position]).strip()
        file = re.search(r'title="(.*?)"', opening["options"])
        if opening["language"] in ("python", "console") or (opening["language"] == "toml" and file):
            notes = _notes_before(lines, position)
            language = opening["language"]
            found.append(Block(page, position + 1, language, content, None, file[1] if file else "", notes))
            after_code = end + 1
        elif after_code and not opening["language"] and not between and found[-1].language == "python":
            found[-1] = dataclasses.replace(found[-1], says=content)
            after_code = 0
        position = end + 1
    return found


def _notes_before(lines: list[str], position: int) -> tuple[str, ...]:
    """What the comments in the lines right before a block say."""
    notes: list[str] = []
    while position > 0 and (note := NOTE.match(lines[position - 1])):
        notes.append(note[1])
        position -= 1
    return tuple(notes)


# --- running ----------------------------------------------------------------------------------------------------------

ALL_OF_THEM = """
import collections, json, sys, traceback
import msgspec
from ropewalk.processes.host_services import HostServices
from ropewalk.processes.open_sessions import all_sessions
from ropewalk.processes.process_manager import ProcessManager

start = ProcessManager.start

def start_warm(self, spec, owner):
    is_service = isinstance(owner, HostServices)
    return start(self, spec if is_service else msgspec.structs.replace(spec, preload=tuple(sys.argv[1:])), owner)

if sys.argv[1:]:
    ProcessManager.start = start_warm
sys.stdout.reconfigure(line_buffering=True, write_through=False)  # whole lines, as on a terminal
spaces = collections.defaultdict(lambda: {"__name__": "__main__"})
for name, space, program in json.load(open("programs.json")):
    print(f"--- {name}", flush=True)
    if SEPARATE:
        print(f"--- {name}", file=sys.stderr, flush=True)
    try:
        exec(compile(program, name, "exec"), spaces[space])
    except BaseException as error:
        sys.stdout.flush()
        traceback.print_exception(error.with_traceback(error.__traceback__.tb_next))
    for session in all_sessions():  # the last lines of nodes belong to their program, and not to the next one
        session.output.wait_until_shown(60.0)
    sys.stdout.flush()
"""


def printed_by(
    programs: Mapping[str, str], folder: Path, preload: Sequence[str] = ()
) -> dict[str, tuple[str, list[str]]]:
    """What each program prints, and what it complains of; one after the other, in one process and one session."""
    out, err = _run_all([(name, name, text) for name, text in programs.items()], folder, preload, merged=False)
    words = _parts(err)
    return {name: (text, complaints(words[name])) for name, text in _parts(out).items()}


def run_blocks(blocks: Iterable[Block], folder: Path, preload: Sequence[str] = ()) -> dict[str, str]:
    """Run blocks of pages; see the top of this file.

    Returns:
        Of each block, by its name, what a terminal shows. Of a console block, that is its commands as well.
    """
    chosen = list(blocks)
    for block in chosen:
        if block.file:
            path = folder / block.file
            assert not path.exists() or path.read_text() == block.code, f"two blocks are {block.file}"
            path.write_text(block.code)
    run = [block for block in chosen if block.is_run]
    python = [(block.name, block.namespace, block.code) for block in run if block.language == "python"]
    printed = _parts(_run_all(python, folder, preload, merged=True)[0]) if python else {}
    return printed | {block.name: _run_console(block, folder) for block in run if block.language == "console"}


def complaints(said: str) -> list[str]:
    """Lines on stderr, but for the one that others are at work on this machine."""
    return [line for line in said.splitlines() if "times vary by" not in line]


def _run_all(
    programs: list[tuple[str, str, str]], folder: Path, preload: Sequence[str], *, merged: bool
) -> tuple[str, str]:
    """Run programs, each with its name and that of its namespace; what comes out, and the errors if not merged."""
    (folder / "programs.json").write_text(json.dumps(programs))
    (folder / "page.py").write_text(f"SEPARATE = {not merged}\n{ALL_OF_THEM}")
    done = subprocess.run(
        [sys.executable, "page.py", *preload],
        cwd=folder,
        env=_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if merged else subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + (done.stderr or "")
    return done.stdout, done.stderr or ""


def _run_console(block: Block, folder: Path) -> str:
    """Run the commands of a block in one shell; what a terminal shows, the commands included."""
    lines = [line for line in block.code.splitlines() if line.startswith("$ ")]
    script = "".join(f"echo {_quoted(line)}\n{line.removeprefix('$ ')}\n" for line in lines)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=_environment(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def _environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))
    return os.environ | {"ROPEWALK_STORE": str(folder / "runs.db"), "PATH": path}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _parts(said: str) -> dict[str, str]:
    """What stands after each line that begins with the mark."""
    parts = re.split(rf"^{MARK}(.*)\n", said, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


# --- comparing --------------------------------------------------------------------------------------------------------


def check(block: Block, printed: str) -> None:
    """Compare what a block has printed with what its page says.

    Raises:
        AssertionError: they differ, or the block raised and the page does not say so.
    """
    said = block.code if block.language == "console" else block.says
    if said is None:
        assert not re.search(r"^Traceback \(most recent call last\)", printed, re.MULTILINE), printed
        return
    shown = as_on_the_page(printed)
    is_said = matches_in_any_order if "any order" in block.notes else matches
    assert is_said(said, shown), f"{block.name} says\n{said}\nand this was printed:\n{shown}"


def as_on_the_page(printed: str) -> str:
    """What was printed, with `laptop` for this host, without what is said of others who are at work on it."""
    kept = (line.rstrip() for line in printed.splitlines() if "times vary by" not in line)
    return re.sub(
        rf"@{re.escape(platform.node().partition('.')[0])}\b", "@laptop", "".join(f"{line}\n" for line in kept)
    )


def matches(said: str, printed: str) -> bool:
    """Whether a text is what a page says, where `...` stands for anything."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else ".*?".join(map(re.escape, line.rstrip().split("..."))) + r"\n"
        for line in said.splitlines()
    )
    return re.fullmatch(pattern, printed) is not None


def matches_in_any_order(said: str, printed: str) -> bool:
    """Whether each line that a page says was printed, and nothing else, unless the page says `...` in a line."""
    lines = said.splitlines()
    left = printed.splitlines()
    for line in lines:
        if line.strip() != "...":
            found = next((each for each in left if matches(line, each + "\n")), None)
            if found is None:
                return False
            left.remove(found)
    return not left or "..." in map(str.strip, lines)
