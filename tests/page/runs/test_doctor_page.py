"""The doctor is asked in a process of its own."""

from __future__ import annotations

import sys

from ropewalk.page.runs.doctor_page import examined


def test_findings_are_read() -> None:
    program = 'print(\'{"ok": true, "findings": [{"subject": "machine", "what": "cpus", "state": "ok"}]}\')'
    report = examined((sys.executable, "-I", "-c", program))
    assert report.findings[0]["what"] == "cpus" and not report.problem


def test_a_doctor_that_fails_is_told_with_what_it_said() -> None:
    report = examined((sys.executable, "-I", "-c", "raise SystemExit('broken')"))
    assert "has failed" in report.problem and "broken" in report.problem and not report.findings
    assert "cannot be run" in examined(("/no/such/command",)).problem
