"""`ropewalk doctor`: every row is judged, failures set the exit code, and nothing secret is shown."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ropewalk.cli import findings
from ropewalk.cli.doctor import render_json, render_line, render_table
from ropewalk.cli.findings import PROBES, Finding, Severity, examine, without_credentials
from ropewalk.escaping import escaped
from tests.cli.command import ropewalk


def report(**changes: str) -> tuple[int, dict[str, Any], dict[tuple[str, str], dict[str, str]]]:
    done = ropewalk("doctor", "--json", folder=Path(), **changes)
    document = json.loads(done.stdout)
    assert done.stderr == ""
    return done.returncode, document, {(row["subject"], row["what"]): row for row in document["findings"]}


def test_the_json_report_is_whole_and_agrees_with_the_exit_code() -> None:
    code, document, rows = report()
    assert {subject for subject, _ in rows} >= set(PROBES)
    assert all(row["state"] in {"ok", "absent", "warning", "failed"} for row in document["findings"])
    assert all(row["advice"] for row in document["findings"] if row["state"] not in ("ok", "absent"))
    assert document["ok"] == all(row["state"] != "failed" for row in document["findings"])
    assert code == (0 if document["ok"] else 1)
    assert rows["versions", "python"]["state"] == "ok"
    assert rows["versions", "cloudpickle"]["state"] == "ok"
    assert rows["settings", "engine"]["value"] == "local (default)"


def test_without_a_terminal_each_finding_is_one_plain_line() -> None:
    done = ropewalk("doctor")
    *lines, verdict = done.stdout.splitlines()
    assert len(lines) >= 30
    assert all(line.split()[0] in {"ok", "absent", "warning", "failed"} for line in lines)
    assert verdict == ", ".join(
        f"{sum(line.startswith(state) for line in lines)} {state}" for state in ("ok", "absent", "warning", "failed")
    )
    assert "\x1b" not in done.stdout


def test_what_a_host_says_does_not_act_in_the_report() -> None:  # S19
    said = "\x1b[2J\x9b2J\x1b]8;;http://evil.example\x07\u202e [red]x[/red]"
    finding = Finding(said, said, Severity.WARNING, said, said)
    shown = io.StringIO()
    Console(file=shown, force_terminal=True, color_system=None, width=2000).print(render_table([finding]))
    for text in (render_line(finding), shown.getvalue().strip("\n").replace("\n", " ")):
        assert text.count(escaped(said)) == 4, "as it was said, markup included"
        assert escaped(text) == text
    forged = render_line(Finding("ssh", "host", Severity.FAILED, "no\x85ok\u2028ok\nok", "\x85ok"))
    assert forged.splitlines() == [forged]


def test_a_real_task_goes_through_a_real_agent() -> None:
    _, _, rows = report()
    row = rows["pool", "round trip"]
    assert row["state"] == "ok" and "out and back in" in row["value"]
    assert "first result in" in rows["pool", "local agent"]["value"]


def test_a_misspelt_setting_is_a_failure_that_names_it() -> None:
    code, document, rows = report(ROPEWALK_ENGNIE="local")
    assert code == 1 and document["ok"] is False
    row = rows["settings", "settings"]
    assert row["state"] == "failed"
    assert "ROPEWALK_ENGNIE" in row["value"] and "did you mean ROPEWALK_ENGINE" in row["value"]


def test_settings_come_with_their_origin(tmp_path: Path) -> None:
    _, _, rows = report(ROPEWALK_RUN_FOLDER=str(tmp_path), ROPEWALK_LEASE_S="12")
    assert rows["settings", "lease_s"]["value"] == "12.0 (environment ROPEWALK_LEASE_S)"
    assert rows["folders", "run folder"]["value"].startswith(str(tmp_path))


def test_a_file_of_settings_that_another_user_could_have_written_is_shown(tmp_path: Path) -> None:
    file = tmp_path / "ropewalk.toml"
    file.write_text('engine = "mpi"\n')
    file.chmod(0o666)
    done = ropewalk("doctor", "--json", folder=tmp_path)
    rows = {(row["subject"], row["what"]): row for row in json.loads(done.stdout)["findings"]}
    row = rows["settings", "file not read"]
    assert (row["state"], row["advice"]) == ("warning", f"chmod go-w {file}")
    assert "ropewalk.toml is not used" in row["value"] and "mode 0666" in row["value"]
    assert rows["settings", "engine"]["value"] == "local (default)"
    assert done.stderr.count("is not used") == 1, "and a warning, once"


def test_a_run_folder_that_cannot_be_used_is_a_failure(tmp_path: Path) -> None:
    code, _, rows = report(ROPEWALK_RUN_FOLDER=str(tmp_path / "missing"))
    assert code == 1
    assert rows["folders", "run folder"]["state"] == "failed"
    assert "ROPEWALK_RUN_FOLDER" in rows["folders", "run folder"]["advice"]


def test_a_run_folder_whose_path_is_too_long_for_sockets_is_a_failure(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    code, _, rows = report(ROPEWALK_RUN_FOLDER=str(folder))
    assert code == 1
    assert rows["folders", "run folder: path"]["state"] == "failed"


def test_a_run_folder_that_others_may_change_is_a_failure(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    _, _, rows = report(ROPEWALK_RUN_FOLDER=str(tmp_path))
    assert rows["folders", "run folder"]["state"] == "failed"
    assert "chmod +t" in rows["folders", "run folder"]["advice"]


def test_a_password_in_a_setting_is_not_shown() -> None:
    done = ropewalk("doctor", "--json", ROPEWALK_IMAGE="https://anne:hunter2@registry.example/image:1")
    assert "hunter2" not in done.stdout
    assert "https://***@registry.example/image:1" in done.stdout
    assert without_credentials("no address@all") == "no address@all"


def test_other_variables_of_the_environment_are_not_shown() -> None:
    done = ropewalk("doctor", "--json", AWS_SECRET_ACCESS_KEY="do-not-show-me", ROPEWALK_RUN_ID="nor-me")
    assert "do-not-show-me" not in done.stdout and "nor-me" not in done.stdout


def test_a_probe_that_breaks_is_a_finding_and_the_others_go_on() -> None:
    def broken() -> Iterator[Finding]:
        raise OSError("the disk is made of cheese")
        yield

    def fine() -> Iterator[Finding]:
        yield Finding("b", "b", Severity.OK, "fine")

    found = list(examine({"a": broken, "b": fine}))
    assert [finding.state for finding in found] == [Severity.FAILED, Severity.OK]
    assert found[0].value == "OSError: the disk is made of cheese"


def test_a_pool_that_fails_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def pool(*_: object, **__: object) -> None:
        raise RuntimeError("no agent today")

    monkeypatch.setattr(findings.ropewalk, "Pool", pool, raising=False)
    (row,) = findings.round_trip()
    assert row.state is Severity.FAILED and "no agent today" in row.value and row.advice


def test_a_missing_package_is_a_failure_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    version = findings._version
    monkeypatch.setattr(findings, "_version", lambda name: None if name in {"msgspec", "torch"} else version(name))
    rows = {finding.what: finding for finding in findings.versions()}
    assert rows["msgspec"].state is Severity.FAILED and rows["msgspec"].advice == "pip install msgspec"
    assert rows["torch"].state is Severity.ABSENT and "optional" in rows["torch"].value


def test_a_cluster_is_ok_only_if_it_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command, code in (
        ("docker", f"echo '{DOCKER_SAYS}' >&2; exit 1"),  # a client alone
        ("scontrol", "echo 'Slurmctld(primary) at head is DOWN'"),
        ("kubectl", "echo 'Server Version: v1.36.0'"),
    ):
        (tmp_path / command).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    rows = {finding.what: finding for finding in findings.cluster()}
    states = dict.fromkeys(("Slurm", "PBS", "LSF", "Docker", "Ray"), Severity.ABSENT) | {"Kubernetes": Severity.OK}
    assert {name: row.state for name, row in rows.items()} == states
    assert rows["Docker"].value == f"{tmp_path}/docker is installed, but gets no answer: {DOCKER_SAYS}"
    assert "is DOWN" in rows["Slurm"].value and rows["Ray"].value == "no ray on the path"
    assert rows["Kubernetes"].value == "answers kubectl version: Server Version: v1.36.0"


DOCKER_SAYS = "Cannot connect to the Docker daemon. Is it running?"


def test_the_three_renderings_tell_the_same() -> None:
    rows = [Finding("s", "w", Severity.OK, "fine"), Finding("s", "v", Severity.FAILED, "broken", "mend [it]")]
    assert json.loads(render_json(rows))["ok"] is False
    assert render_line(rows[1]).endswith("broken -- mend [it]") and render_line(rows[1]).startswith("failed")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render_table(rows))
    assert "mend [it]" in console.export_text()
