"""How a program logs and warns, in another process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.scenarios.test_main_globals import run

#: Everything that a script may set; what is told of it comes last on stdout.
SENDER = '''
import logging, sys, warnings
from logging.handlers import RotatingFileHandler, SysLogHandler

class Mine(logging.Formatter):
    def format(self, record):
        return f"mine: {record.getMessage()}"

class Loud(logging.Handler):
    def __init__(self, mark):
        super().__init__()
        self.mark = mark
    def emit(self, record):
        print(record.getMessage().upper() + self.mark)

class Foreign(logging.StreamHandler):
    """As of a library that cannot be sent: it holds a generator."""
    __module__ = "somewhere"

class Own(UserWarning): ...

logging.addLevelName(5, "TRACE")
logging.basicConfig(level=5, format="%(levelname)s %(name)s %(message)s")
logging.disable(1)
shown = logging.getLogger("shown")
shown.propagate = False
shown.addHandler(logging.StreamHandler(sys.stdout))
shown.handlers[0].setFormatter(Mine())
shown.handlers[0].addFilter(lambda record: "secret" not in record.getMessage())
loud = logging.getLogger("loud")
loud.propagate = False
loud.addHandler(Loud("!"))
loud.setLevel(logging.ERROR)
kept = logging.getLogger("kept")
kept.propagate = False
kept.addHandler(RotatingFileHandler("kept.log", maxBytes=10))
kept.handlers[0].setLevel(logging.WARNING)
lost = logging.getLogger("lost")
lost.propagate = False
lost.addHandler(Foreign())
logging.getLogger("decimal").addHandler(Foreign())  # a library's, which adds it again when it is imported
logging.getLogger("decimal").setLevel(logging.CRITICAL)
logging.captureWarnings(True)
logging.getLogger("py.warnings").disabled = True
warnings.resetwarnings()
warnings.filterwarnings("error", "no (.*) please", DeprecationWarning, module="__main_.*", lineno=0)
warnings.filterwarnings("error", category=Own)

import decimal
warnings.simplefilter("error", category=type("Late", (UserWarning,), {"__module__": "late"}))
from ropewalk.transport.habits import habits
sys.stdout.buffer.write(habits())
'''

RECEIVER = """
import json, logging, sys, types, warnings
from ropewalk.transport import habits
elsewhere, told = sys.argv[1] == "elsewhere", open("told", "rb").read()
if elsewhere:
    habits.home = lambda: "another host"
habits.take_over(told)
logging.log(5, "traced")
logging.log(1, "disabled")
for name in ("shown", "loud", "kept", "lost"):
    logger = logging.getLogger(name)
    logger.warning("a secret of %s", name)
    logger.error("an error of %s", name)
    logger.info("a word of %s", name)
print(logging.getLogger("decimal").level, logging.getLogger("decimal").handlers)

def outcome(warning):
    try:
        warnings.warn(warning)
    except Warning as error:
        return f"raised {error}"
    return "passed"

print(outcome(DeprecationWarning("no more please")), outcome(DeprecationWarning("yes")))
Own = type("Own", (UserWarning,), {})
print(outcome(Own("own")))
sys.modules["late"] = types.SimpleNamespace(Late=type("Late", (UserWarning,), {}))
print(outcome(sys.modules["late"].Late("late")), outcome(UserWarning("other")))
"""


def received(folder: Path, where: str) -> tuple[list[str], list[str]]:
    """What a process that has been told says: on stdout, and on stderr."""
    told = subprocess.run([sys.executable, "-c", SENDER], capture_output=True, cwd=folder, timeout=60)
    assert told.stderr == b""
    (folder / "told").write_bytes(told.stdout)
    said = subprocess.run(
        [sys.executable, "-c", RECEIVER, where], capture_output=True, text=True, cwd=folder, timeout=60
    )
    return said.stdout.splitlines(), said.stderr.splitlines()


def test_another_process_of_this_host_logs_and_warns_as_the_program_does(tmp_path: Path) -> None:
    out, errors = received(tmp_path, "here")
    assert out == [
        "mine: an error of shown",
        "mine: a word of shown",
        "AN ERROR OF LOUD!",
        "50 []",
        "raised no more please passed",
        "raised own",
        "raised late passed",
    ]
    assert errors == ["TRACE root traced", "a secret of lost", "an error of lost", "a word of lost"]
    assert (tmp_path / "kept.log").read_text() == "a secret of kept\nan error of kept\n"


def test_on_another_host_what_was_for_a_file_goes_to_stderr(tmp_path: Path) -> None:
    _, errors = received(tmp_path, "elsewhere")
    assert errors[1:3] == ["a secret of kept", "an error of kept"]
    assert (tmp_path / "kept.log").read_text() == ""  # as the program itself has opened it


def test_workers_and_processes_log_and_warn_as_the_script_does(tmp_path: Path) -> None:
    lines, errors = run(
        tmp_path,
        """
import logging, warnings, ropewalk

logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(processName)s:%(message)s")
warnings.simplefilter("error", UserWarning)

def work(number):
    logging.info("begun %s", number)
    logging.debug("not shown")
    try:
        warnings.warn("an error")
    except UserWarning:
        logging.warning("warned")

with ropewalk.Pool(1) as pool:
    pool.map(work, [1])
logging.getLogger().setLevel(logging.WARNING)
process = ropewalk.Process(target=work, args=(2,), name="single")
process.start()
process.join()
print(process.exitcode)
""",
    )
    assert lines == ["0"]
    said = [line.partition("] ")[2] or line for line in errors.splitlines()]
    assert said == ["INFO:SpawnPoolWorker-1:begun 1", "WARNING:SpawnPoolWorker-1:warned", "WARNING:single:warned"]
