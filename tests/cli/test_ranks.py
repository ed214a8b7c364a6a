"""`ropewalk run --ranks`: any script for `torchrun` in several processes, with real processes and signals."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from ropewalk.cli.ranks import parse_ranks
from tests.cli.command import ropewalk, start_ropewalk
from tests.cli.test_run import write
from tests.rest_of import rest_of

ENVIRONMENT = """
    import json, os, sys
    if __name__ == "__main__":
        names = [name for name in os.environ if name.startswith(("GROUP_", "ROLE_", "TORCHELASTIC_"))]
        names += ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"]
        print(json.dumps({"argv": sys.argv, "package": __package__, **{name: os.environ[name] for name in names}}))
"""
FAILS = """
    import os, signal, sys, time
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        {fails}
    time.sleep({others_s})
"""


def lines_of(output: str) -> list[dict[str, str]]:
    """What the ranks printed, by rank, without the labels."""
    found = [json.loads(line.partition("] ")[2]) for line in output.splitlines()]
    return sorted(found, key=lambda line: line["RANK"])


def test_a_script_has_the_variables_and_arguments_of_torchrun(tmp_path: Path) -> None:
    write(tmp_path, "show.py", ENVIRONMENT)
    done = ropewalk("run", "--ranks", "2", "--max-restarts", "3", "show.py", "--", "--seed", "7", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    first, second = lines_of(done.stdout)
    assert "[show 0@" in done.stdout and "[show 1@" in done.stdout
    assert first.pop("argv") == second.pop("argv") == ["show.py", "--seed", "7"]
    assert (first.pop("RANK"), second.pop("RANK")) == ("0", "1")
    assert (first.pop("LOCAL_RANK"), second.pop("LOCAL_RANK")) == ("0", "1")
    assert (first.pop("ROLE_RANK"), second.pop("ROLE_RANK")) == ("0", "1")
    assert first == second and first.pop("TORCHELASTIC_RUN_ID")
    assert first == {
        "package": None, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_NAME": "show", "ROLE_WORLD_SIZE": "2",
        "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_USE_AGENT_STORE": "False",
    }  # fmt: skip


def test_a_module_runs_in_each_rank(tmp_path: Path) -> None:
    write(tmp_path, "pack/__init__.py", "")
    write(tmp_path, "pack/show.py", ENVIRONMENT)
    done = ropewalk("run", "--ranks", "1:1", "--module", "pack.show", "x", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (line,) = lines_of(done.stdout)
    assert line["package"] == "pack" and line["argv"][1:] == ["x"]  # type: ignore[comparison-overlap]


@pytest.mark.parametrize(
    ("fails", "code", "words"),
    [
        ("sys.exit(7)", 7, "exited with code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was killed by SIGKILL"),
        ("raise ValueError('broken')", 1, "raised ValueError: broken"),
    ],
    ids=["exit", "kill", "raise"],
)
def test_the_exit_code_and_the_cause_are_those_of_the_rank_that_failed(
    tmp_path: Path, fails: str, code: int, words: str
) -> None:
    write(tmp_path, "s.py", FAILS.format(fails=fails, others_s=300))
    done = ropewalk("run", "--ranks", "2", "s.py", folder=tmp_path)
    assert done.returncode == code, done.stderr
    (message,) = [line for line in done.stderr.splitlines() if line.startswith("ropewalk run: ")]
    assert f"node s.1 {words}" in message
    assert ("ValueError: broken" in done.stderr.splitlines()) == (code == 1), "its traceback, once"
    assert "running.py" not in done.stderr


def test_a_killed_rank_starts_all_again_and_the_cause_is_shown(tmp_path: Path) -> None:
    write(tmp_path, "s.py", FAILS.format(fails="os.kill(os.getpid(), signal.SIGKILL)", others_s=0.1))
    done = ropewalk("run", "--ranks", "2", "--max-restarts", "1", "s.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (told,) = [line for line in done.stderr.splitlines() if line.startswith("s.1 on host ")]
    assert "was killed by SIGKILL" in told
    assert told.endswith("; all 2 ranks start again (restart 1 of at most 1)")


def test_ctrl_c_sends_sigterm_to_the_ranks_which_may_handle_it(tmp_path: Path) -> None:
    source = """
        import os, signal, sys, time
        def stop(*_):
            print("rank", os.environ["RANK"], "saves", flush=True)
            sys.exit(0)
        signal.signal(signal.SIGTERM, stop)
        print("ready", flush=True)
        time.sleep(300)
    """
    write(tmp_path, "s.py", source)
    process = start_ropewalk("run", "--ranks", "2", "s.py", folder=tmp_path)
    assert process.stdout
    ready = [process.stdout.readline() for _ in range(2)]
    assert all("ready" in line for line in ready)
    process.send_signal(signal.SIGINT)
    output, errors = rest_of(process)
    assert process.returncode == 130
    assert "rank 0 saves" in output and "rank 1 saves" in output
    assert "Traceback" not in errors and "has not ended" not in errors


def test_mistakes_of_the_command_line_end_in_a_sentence(tmp_path: Path) -> None:
    write(tmp_path, "s.py", "")
    for words, said in (
        (["--ranks", "2:1"], "as in 2:4, not '2:1'"),
        (["--ranks", "all"], "--ranks takes a number of ranks"),
        (["--max-restarts", "1"], "give their number, as in --ranks 4"),
        (["--ranks", "2", "--mode", "threads"], "each rank needs a process of its own"),
        (["--ranks", "2", "--cpus", "9999"], "9999 CPUs"),
    ):
        done = ropewalk("run", *words, "s.py", folder=tmp_path)
        assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_dry_run_shows_as_many_processes_as_ranks(tmp_path: Path) -> None:
    write(tmp_path, "s.py", "")
    assert "3 processes" in ropewalk("run", "--ranks", "2:3", "--dry-run", "s.py", folder=tmp_path).stdout


def test_bounds_are_parsed() -> None:
    assert parse_ranks("4") == (4, 4) and parse_ranks("2:4") == (2, 4)
    for wrong in ("0", "4:2", "-1", "2:", "٤"):
        with pytest.raises(ValueError, match="as in 2:4"):
            parse_ranks(wrong)
