"""What is sent to Slurm is compared as text, and run by a shell where that says more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.engines.engine import JobSpec
from ropewalk.engines.resources import Resources
from ropewalk.engines.slurm import SlurmEngine
from ropewalk.engines.slurm_script import SlurmOptions, batch_script, job_flags
from ropewalk.errors import EngineError, SettingsError


def test_a_whole_message_reads_like_this(tmp_path: Path) -> None:
    engine = SlurmEngine({"folder": "/shared", "partition": "gpu", "account": "team", "setup": ["module load python"]})
    spec = JobSpec(
        command=["/opt/python", "-m", "ropewalk.processes.agent"],
        environment={"NAME": "two words"},
        stdin=b"secret",
        resources=Resources(cpus=3.5, gpus=2, memory="8Gi"),
        time_limit_s=5400,
    )
    assert engine.render(spec) == (
        "sbatch --parsable --job-name=ropewalk-RUN.REQUEST --output=/shared/ropewalk-RUN/REQUEST/0.log "
        "--open-mode=append --nodes=1 --ntasks=1 --cpus-per-task=4 --mem=8192M --gres=gpu:2 --time=1:30:00 "
        "--signal=B:USR1@60 --partition=gpu "
        "--account=team --no-requeue --export=ALL <<'END'\n"
        "#!/bin/bash -l\n"
        "# A job of Ropewalk, run RUN. What is secret comes on its standard input and is not part of this text.\n"
        "unset LC_ALL SLURM_BITSTR_LEN SLURM_JWT\n"
        "# A notice that comes before the agent listens must not end it.\n"
        "trap '' USR1\n"
        "export PATH=${PATH:-/usr/local/bin:/usr/bin:/bin} HOME=${HOME:-~}\n"
        "credentials=/shared/ropewalk-RUN/REQUEST/${SLURM_ARRAY_TASK_ID:-0}.stdin\n"
        'if ! [ -r "$credentials" ]; then\n'
        '    echo "ropewalk: $HOSTNAME does not see $credentials. Either hosts do not share that folder (see the option'
        ' folder of the engine slurm), or this job was started before, which needs a fresh submission." >&2\n'
        "    exit 78\n"
        "fi\n"
        'exec 3<"$credentials" 4</dev/fd/3\n'
        "ropewalk_place=$(readlink /proc/$$/fd/3) ropewalk_output=$(readlink /proc/$$/fd/1)\n"
        'rm -f -- "$credentials"\n'
        "ropewalk_digest=$(sha256sum <&4) || exit\n"
        'if [ "$ropewalk_digest" != "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b  -" ]; then\n'
        '    echo "ropewalk: $credentials on $HOSTNAME is not what the launcher has written" >&2\n'
        "    exit 80\n"
        "fi\n"
        "exec 4<&-\n"
        "# Output goes into a file beside them, and through no link into another file.\n"
        'case $ropewalk_output in "${ropewalk_place%/*}"/*.log | /dev/* | [!/]*) ;; *)\n'
        '    echo "ropewalk: the output goes to $ropewalk_output, where the launcher has no file" >&2\n'
        "    exit 80 ;;\n"
        "esac\n"
        "ropewalk_depth=${#BASH_SOURCE[@]}\n"
        "trap 'ropewalk_code=$?; echo \"ropewalk: the option setup of the engine slurm ended with exit code "
        '$ropewalk_code at: $BASH_COMMAND; end a line with || true if its failure does not matter" >&2; '
        "exit 79' EXIT\n"
        "trap 'ropewalk_code=$?; [ ${#BASH_SOURCE[@]} -gt $ropewalk_depth ] || exit $ropewalk_code' ERR\n"
        ": setup\n"
        "module load python\n"
        "trap - EXIT ERR\n"
        "export NAME='two words'\n"
        "export ROPEWALK_RUN_ID=RUN\n"
        "exec /opt/python -m ropewalk.processes.agent <&3 3<&-\n"
        "END\n"
    )


@pytest.mark.parametrize(
    ("options", "spec", "flag"),
    [
        ({"gpu_type": "a100"}, {"resources": Resources(gpus=4)}, "--gres=gpu:a100:4"),
        ({"gres": "nvme:1"}, {"resources": Resources(gpus=1)}, "--gres=gpu:1,nvme:1"),
        ({"gres": "nvme:1"}, {}, "--gres=nvme:1"),
        ({"mem": "4G"}, {}, "--mem=4G"),
        ({"mem": "4G"}, {"resources": Resources(memory=1)}, "--mem=1M"),
        ({"time": "2:00:00"}, {}, "--time=2:00:00"),
        ({"time": "2:00:00"}, {"time_limit_s": 30.0}, "--time=0:01:00"),
        ({"exclusive": True}, {}, "--exclusive"),
        ({"qos": "high"}, {}, "--qos=high"),
        ({"constraint": "a100&nvlink"}, {}, "--constraint=a100&nvlink"),
        ({"exclude": "n[1-3]"}, {}, "--exclude=n[1-3]"),
        ({"nodelist": "n7"}, {}, "--nodelist=n7"),
        ({"reservation": "mine"}, {}, "--reservation=mine"),
        ({"notice_s": 120}, {}, "--signal=B:USR1@120"),
        ({"extra": ["--mail-type=END"]}, {}, "--mail-type=END"),
    ],
)
def test_options_and_resources_become_flags(options: dict[str, object], spec: dict[str, object], flag: str) -> None:
    job = JobSpec(command=["x"], **spec)  # pyright: ignore[reportArgumentType]
    assert flag in job_flags(SlurmOptions(**options), job)  # pyright: ignore[reportArgumentType]


def test_flags_that_nobody_asked_for_are_not_sent() -> None:
    flags = job_flags(SlurmOptions(notice_s=0), JobSpec(command=["x"]))
    assert flags == ["--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--no-requeue", "--export=ALL"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "main\n#SBATCH --uid=0"}, "control characters"),
        ({"setup": ["module load x", "a\nb"]}, "control characters"),
        ({"extra": "--export=ALL"}, "engine sets it itself"),
        ({"extra": "--requeue"}, "engine sets it itself"),
        ({"extra": "-p"}, "long flags"),
        ({"extra": "job.sh"}, "long flags"),
        ({"time": "2h"}, "a time is written"),
        ({"nodelist": "n[1-2]"}, "several nodes"),
        ({"exclude": "n[a-c]"}, "a list of nodes is written"),
        ({"folder": "/a\\b"}, "backslash"),
        ({"notice_s": -1}, "notice_s"),
        ({"processes_per_job": 0}, "processes_per_job"),
        ({"partitoin": "main"}, "did you mean partition"),
        ({"exclusive": "maybe"}, "true or false"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(options: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        SlurmEngine(options)


@pytest.mark.parametrize("environment", [{"A-B": "1"}, {"1A": "1"}, {"A;reboot": "1"}, {"A": "x\0y"}, {"": "1"}])
def test_variables_that_no_shell_can_set_are_refused(environment: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot be set by a shell"):
        batch_script(SlurmOptions(), JobSpec(command=["x"], environment=environment), "f00d", "/f")


_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)


@given(_TEXT, _TEXT)
def test_a_shell_hands_over_words_as_they_are(word: str, value: str) -> None:
    code = "import os, sys; sys.stdout.buffer.write(os.fsencode(sys.argv[1]) + b'|' + os.environb[b'VALUE'])"
    spec = JobSpec(command=[sys.executable, "-I", "-S", "-c", code, word], environment={"VALUE": value})
    script = batch_script(SlurmOptions(), spec, "f00d", "/f")
    done = subprocess.run(["/bin/bash"], input=script.encode(), capture_output=True, check=True)
    assert done.stdout == f"{word}|{value}".encode()


def test_a_script_opens_removes_and_hands_over_its_credentials(tmp_path: Path) -> None:
    folder = tmp_path / "it's $HOME"
    folder.mkdir()
    (folder / "3.stdin").write_bytes(b"secret")
    spec = JobSpec(command=["/bin/sh", "-c", "cat; echo $ROPEWALK_RUN_ID $MORE; ls /proc/self/fd"], stdin=b"secret")
    options = SlurmOptions(setup=["export MORE=more; read line || echo nothing to read"])
    script = batch_script(options, spec, "f00d", str(folder)).replace("#!/bin/bash -l", "")

    def run() -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "SLURM_ARRAY_TASK_ID": "3"}
        path = tmp_path / "job.sh"
        path.write_text(script)
        return subprocess.run(
            ["/bin/bash", path], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment
        )

    done = run()
    assert done.stdout.split() == ["nothing", "to", "read", "secretf00d", "more", "0", "1", "2", "3"], done
    assert list(folder.iterdir()) == []
    again = run()
    assert again.returncode == 78
    assert "started before" in again.stderr and str(folder) in again.stderr


def test_a_name_of_a_run_cannot_lead_elsewhere(tmp_path: Path) -> None:
    engine = SlurmEngine({"folder": str(tmp_path)})
    for run in ("../x", "a/b", "a b", "", ".hidden", "a\nb"):
        with pytest.raises(EngineError, match="letters, digits, dots and dashes"):
            engine.submit(JobSpec(command=["x"]), 1, run, "a")
