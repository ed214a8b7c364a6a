"""`ropewalk run --engine ...`: what is asked for reaches the script as settings, and `--dry-run` shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import ropewalk
from tests.cli.pretend_cluster import installed

SHOW = """
from ropewalk import settings
s = settings.current()
print(s.engine, dict(s.engine_options), s.cpus, s.gpus, s.memory, s.time_limit_s, s.hosts, s.advertise, s.code)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "show.py").write_text(SHOW)
    return installed(tmp_path)


def test_everything_asked_for_reaches_the_script(tmp_path: Path, cluster: dict[str, str]) -> None:
    done = ropewalk(
        "run", "show.py", "--engine", "pretend", "--option", "partition=gpu", "--cpus", "4", "--gpus", "1", "--memory",
        "8G", "--time", "2h", "--hosts", "3", "--advertise", "10.0.0.5", "--code", "shared", folder=tmp_path, **cluster,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout == "pretend {'partition': 'gpu'} 4.0 1 8G 7200.0 3 10.0.0.5 shared\n"


def test_options_of_the_environment_stay_unless_another_engine_is_named(
    tmp_path: Path, cluster: dict[str, str]
) -> None:
    cluster |= {"ROPEWALK_ENGINE": "pretend", "ROPEWALK_ENGINE_OPTIONS": '{"partition": "night"}'}
    kept = ropewalk("run", "show.py", "--cpus", "2", folder=tmp_path, **cluster)
    assert kept.stdout.startswith("pretend {'partition': 'night'} 2.0")
    other = ropewalk("run", "show.py", "--engine", "local", folder=tmp_path, **cluster)
    assert other.stdout.startswith("local {} None"), other.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--engine", "pretent"], "there is no engine 'pretent'; did you mean 'pretend'? There are "),
        (["--engine", "pretent"], "did you mean 'pretend'?"),
        (["--engine", "pretend", "-o", "partitoin=gpu"], "has no option partitoin; did you mean partition?"),
        (["--engine", "pretend", "-o", "partition"], "an engine's option is written name=value, not 'partition'"),
        (["--memory", "8gb"], 'did you mean "8G"?'),
        (["--time", "1:30"], 'must be a time such as "2h"'),
        (["--advertise", "0.0.0.0"], "a wildcard would listen everywhere"),
        (["--code", "image"], "setting code must be one of bundle, shared, not 'image' (from argument code)"),
        (["--cpus", "0"], "setting cpus must be a number of CPUs above 0"),
    ],
)
def test_what_cannot_be_is_refused_before_the_script_runs(
    tmp_path: Path, cluster: dict[str, str], arguments: list[str], words: str
) -> None:
    done = ropewalk("run", "show.py", *arguments, folder=tmp_path, **cluster)
    assert done.returncode == 2 and done.stdout == ""
    assert words in done.stderr and done.stderr.startswith("ropewalk run: ")


# --- dry run ----------------------------------------------------------------------------------------------------------


def test_a_dry_run_shows_the_jobs_and_runs_nothing(tmp_path: Path, cluster: dict[str, str]) -> None:
    done = ropewalk(
        "run", "show.py", "--engine", "pretend", "--workers", "6", "--cpus", "4", "--gpus", "1", "--memory", "8G",
        "--time", "2h", "--option", "partition=gpu", "--dry-run", "--", "--seed", "7", folder=tmp_path, **cluster,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.splitlines()[:4] == [
        "# engine pretend (argument engine)",
        "# 6 processes of 4 CPUs, 1 GPU, 8,000,000,000 bytes of memory",
        "# 2 jobs with room for 3 each",
        f"# code: {tmp_path} is sent to every host, {sum(path.is_file() for path in tmp_path.rglob('*'))} files, "
        f"{sum(path.stat().st_size for path in tmp_path.rglob('*') if path.is_file()):,} bytes of at most 100,000,000",
    ]
    assert "partition=gpu cpus=12 gpus=3 memory=24000000000 time=7200.0" in done.stdout
    assert "-m ropewalk.processes.agent" in done.stdout
    assert list((tmp_path / "queue").iterdir()) == [] and "pretend {" not in done.stdout


def test_a_dry_run_says_what_no_host_can_hold(tmp_path: Path, cluster: dict[str, str]) -> None:
    done = ropewalk("run", "show.py", "--engine", "pretend", "--cpus", "64", "--dry-run", folder=tmp_path, **cluster)
    assert done.returncode == 2 and "no host has 64 CPUs; the largest has 16" in done.stderr
    assert "cpus=64" in done.stdout  # and shows what was asked for


def test_a_dry_run_on_this_machine_is_one_job(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("raise SystemExit('ran')")
    done = ropewalk("run", "s.py", "--dry-run", folder=tmp_path)
    assert done.returncode == 0 and "# 1 job with room for all of them" in done.stdout and "# code" not in done.stdout
    assert ropewalk("run", "missing.py", "--dry-run", folder=tmp_path).returncode == 2
