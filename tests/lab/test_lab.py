"""The lab does what it says: each condition is measured on real sockets between two machines."""

from __future__ import annotations

from tests.lab import Lab


def test_a_machine_has_a_name_an_address_and_files_of_its_own(lab: Lab) -> None:
    one, two = lab.machines(2)
    one.run(["sh", "-c", "hostname > /tmp/name; touch /run/mine /dev/shm/mine"])

    assert one.path("/tmp/name").read_text() == "n1\n"
    assert not any(two.path(path).exists() for path in ("/tmp/name", "/run/mine", "/dev/shm/mine"))
    assert one.run(["ls", "/run"]).stdout == "hosts\nmine\n"
    assert one.ip != two.ip
