"""The report of coverage adds up files by package."""

from __future__ import annotations

from tests.coverage_by_package import by_package, table


def file(num: int, run: int, branches: int, branches_run: int) -> dict[str, dict[str, int]]:
    counts = {"num_statements": num, "covered_lines": run, "num_branches": branches, "covered_branches": branches_run}
    return {"summary": counts}


def test_files_are_added_up_by_package_and_over_all() -> None:
    files = {
        "src/ropewalk/pool/pool.py": file(2000, 1500, 10, 4),
        "src/ropewalk/pool/deeper/one.py": file(1000, 1000, 10, 7),
        "src/ropewalk/errors.py": file(50, 1, 0, 0),
    }
    assert table(by_package(files)).splitlines()[2:] == [
        "| (modules) | 50 | 2.0% | 0 | 0.0% |",
        "| pool | 3,000 | 83.3% | 20 | 55.0% |",
        "| all | 3,050 | 82.0% | 20 | 55.0% |",
    ]
