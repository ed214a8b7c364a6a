"""Who gets in where a run has hosts: nobody from outside, on no other address, and no secret lies about."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import ssl
import stat
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from ropewalk.calls.messages import CALLS
from ropewalk.errors import LinkClosed, TransportError, TransportRefused
from ropewalk.processes.messages import CONTROL
from ropewalk.transport.address import HostAddress, TlsAddress, parse_address
from ropewalk.transport.authority import RunAuthority
from ropewalk.transport.client import dial
from ropewalk.transport.credentials import Credentials, ProcessCertificate
from ropewalk.transport.passport import Passport
from ropewalk.transport.tokens import token_of
from tests.lab import Lab, Machine
from tests.other_users import MALLORY, needs_root
from tests.scenarios.hosts import Cluster, cluster_of, processes_on

#: A run with everything that listens: pool, services, and relays between n1 and n2. It tells all of its secrets.
OPEN_RUN = """
    import logging
    logging.basicConfig(level=logging.DEBUG)

    class Total:
        def __init__(self): self.total = 0
        def add(self): self.total += 1; return self.total

    class Adder:
        def __init__(self, *totals): self.totals = totals
        def run(self):
            while True:
                for total in self.totals: total.add()
                time.sleep(0.02)

    def certificate(each):
        return [each.cert_pem, each.key_pem, each.ca_pem, each.fingerprint]

    here = session(hosts=3).__enter__()
    pool = rw.Pool(3, session=here)
    pool.wait_until_ready(120)
    program = rw.Program("sum")
    totals = [program.add(rw.Service(Total), name=f"total{number}") for number in range(3)]
    program.add(rw.Worker(Adder, *totals), replicas=3)
    running = program.launch(session=here)
    running.wait_ready(120)
    queue, manager = rw.Queue(session=here), rw.Manager(session=here)
    queue.put("kept")
    while not here.ways():
        time.sleep(0.02)
    pool.map(where, range(100))
    tls = here._listener.address.tls
    members = [*here.processes._processes.items(), *here._fleet.agents.items()]
    from ropewalk.transport.address import parse_address
    from ropewalk.transport.tokens import host_of, key_of_host, key_of_socket

    def service(address):
        path = parse_address(address).unix.path
        return address, key_of_socket(key_of_host(here._run_key, host_of(address)), os.path.basename(path))

    services = {
        "depot": service(queue._reference.address),
        "manager": service(manager.address),
        "program": next(iter(running._conductor.announcer._keys.items())),
    }
    say(json.dumps({
        "services": services,
        "run": here.run_id, "ip": tls.ip, "port": tls.port, "fingerprint": tls.fingerprint,
        "launcher": certificate(here._passport.certificate),
        "doors": [word for agent in here.hosts() for word in (agent.launcher_secret, agent.launcher_ticket)],
        "secrets": {id: each.credentials.secret for id, each in members},
        "certificates": {id: certificate(each.certificate) for id, each in members},
    }))
    for line in sys.stdin:
        match line.split():
            case ["retire"]:
                id = next(id for id in here.processes._processes if id.startswith("pool"))
                here.processes.retire(id)
                say(id)
            case ["refused"]:
                say(here._listener.num_refused)
            case ["work"]:
                say(sum(number for number, _, _ in pool.map(where, range(100))))
            case _:
                break
    assert queue.get(timeout=5) == "kept"
    running.stop()
    pool.terminate()
    manager.shutdown()
    here.close()
"""
SLOTS = 3


def test_only_members_of_the_run_get_in(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path) as cluster:
        lab.part(cluster.hosts[0], cluster.hosts[1])
        script = cluster.launch(OPEN_RUN, slots=SLOTS)
        facts = json.loads(script.line())
        run, address = facts["run"], TlsAddress(facts["ip"], facts["port"], facts["fingerprint"])
        stranger = lab.machine("stranger")
        other_run = RunAuthority.create("0123456789abcdef")

        def knock(who: str, secret: str, certificate: ProcessCertificate | None) -> Callable[[], None]:
            passport = Passport("stranger", stranger.ip, certificate)
            return lambda: dial(address, Credentials(run, who, secret), CONTROL, passport=passport, timeout_s=5).close()

        agent, worker = "agent-1", next(id for id in facts["secrets"] if id.startswith("pool"))
        secrets = facts["secrets"]
        own = {id: ProcessCertificate(*words) for id, words in facts["certificates"].items()}
        stolen = other_run.issue(agent)
        attempts = {
            "no certificate": lambda: _speak_tls_without_certificate(address),
            "no TLS": lambda: _say_in_plain(address),
            "the certificate of another run": knock(agent, secrets[agent], stolen),
            "a secret of its own making": knock(agent, "0" * 64, own[agent]),
            "the certificate of another process": knock(agent, secrets[agent], own[worker]),
        }
        script.tell("refused")
        (before,) = script.numbers()
        assert [what for what, attempt in attempts.items() if _gets_in(stranger, attempt)] == []
        script.tell("refused")
        assert script.numbers() == [before + len(attempts)]

        def call(
            service: str, who: str, token_of_whom: ProcessCertificate, shown: ProcessCertificate
        ) -> Callable[[], None]:
            """Dial a service under a name, with the token for it and a certificate, while another one may be shown."""
            where, key = facts["services"][service]
            token = token_of(key, who, token_of_whom.fingerprint)
            credentials = Credentials(run, who, token, token_of_whom.fingerprint)
            passport = Passport("stranger", stranger.ip, shown)
            tls = parse_address(where)
            assert isinstance(tls, HostAddress) and tls.tls
            way = tls.tls
            return lambda: dial(way, credentials, CALLS, passport=passport, timeout_s=5).close()

        retired, other = [id for id in secrets if id.startswith("pool")][:2]
        for service in facts["services"]:
            stranger.on_wire(call(service, retired, own[retired], own[retired]))  # as it may itself, from anywhere
            thieves = {
                "a token with another certificate": call(service, other, own[other], own[retired]),
                "its own certificate under another name": call(service, other, own[retired], own[other]),
            }
            assert [what for what, attempt in thieves.items() if _gets_in(stranger, attempt)] == []
        swapped = dict(facts["services"], depot=[facts["services"]["depot"][0], facts["services"]["manager"][1]])
        facts["services"], right = swapped, facts["services"]
        assert not _gets_in(stranger, call("depot", retired, own[retired], own[retired])), "the token for the manager"
        facts["services"] = right
        script.tell("retire")
        assert script.line() == retired
        with pytest.raises(TransportError):
            stranger.on_wire(knock(retired, secrets[retired], own[retired]))
        for service in ("depot", "manager"):
            for name in (retired, "fresh"):  # a name that nobody knows, with a token that was made for it
                assert not _gets_in(stranger, call(service, name, own[retired], own[retired])), (service, name)
            stranger.on_wire(call(service, other, own[other], own[other]))
        script.tell("work")
        assert script.numbers() == [4950], "the run goes on"
        script.tell("end")
        code, _, errors = script.end()
        assert code == 0, errors


def _gets_in(machine: Machine, attempt: Callable[[], None]) -> bool:
    try:
        machine.on_wire(attempt)
    except (TransportRefused, LinkClosed, ConnectionError, ssl.SSLError):
        return False
    return True


def _speak_tls_without_certificate(address: TlsAddress) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((address.ip, address.port), timeout=5) as plain:
        with context.wrap_socket(plain) as stream:
            stream.sendall(b"hello")
            if not stream.recv(100):
                raise ConnectionError("it hung up")


def _say_in_plain(address: TlsAddress) -> None:
    with socket.create_connection((address.ip, address.port), timeout=5) as plain:
        plain.sendall(b"rw\x01\x00" + bytes(100))
        with contextlib.suppress(TimeoutError):
            while plain.recv(100):
                pass
        raise ConnectionError("it hung up")


def test_nothing_listens_elsewhere_and_no_secret_lies_about(lab: Lab, tmp_path: Path) -> None:
    with cluster_of(lab, tmp_path) as cluster, no_umask():
        lab.part(cluster.hosts[0], cluster.hosts[1])
        script = cluster.launch("    os.umask(0)\n" + OPEN_RUN, slots=SLOTS)
        facts = json.loads(script.line())
        machines = [cluster.head, *cluster.hosts]

        listening = {machine.name: listeners_on(machine) for machine in machines}
        for machine in machines:
            assert {ip for ip, _ in listening[machine.name]} == {machine.ip}, listening

        searched = secrets_in(facts)
        assert len(searched) > 20
        assert holders_of(searched, cluster) == []
        for machine in machines:
            assert open_entries(machine) == []

        script.tell("end")
        code, out, errors = script.end()
        assert code == 0, errors
        assert not [secret for secret in searched if secret in out or secret in errors], "it was logged"


@contextlib.contextmanager
def no_umask() -> Generator[None]:
    """Files get the modes that they are asked for; agents inherit it."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def listeners_on(machine: Machine) -> list[tuple[str, int]]:
    """Address and port of everything that listens, or receives datagrams, in a machine."""
    found: list[tuple[str, int]] = []
    for line in machine.run(["ss", "-H", "-l", "-t", "-u", "-n"]).stdout.splitlines():
        ip, _, port = line.split()[4].rpartition(":")
        found.append((ip.strip("[]"), int(port)))
    return found


def secrets_in(facts: dict[str, object]) -> list[str]:
    """Each secret as text that would be recognised wherever it lies; of a key, a line from its middle."""
    launcher, certificates, secrets = facts["launcher"], facts["certificates"], facts["secrets"]
    assert isinstance(launcher, list) and isinstance(certificates, dict) and isinstance(secrets, dict)
    doors = facts["doors"]
    assert isinstance(doors, list)
    keys = [launcher[1], *(words[1] for words in certificates.values())]
    return [*doors, *secrets.values(), *(key.splitlines()[1] for key in keys)]


def holders_of(secrets: list[str], cluster: Cluster) -> list[str]:
    """Command lines, environments and files in which one of these stands."""
    texts: dict[str, bytes] = {}
    for machine in (cluster.head, *cluster.hosts):
        processes = processes_on(machine)
        assert processes
        for process in processes:
            for kind in ("cmdline", "environ"):
                with contextlib.suppress(OSError):
                    texts[f"{machine.name} {process.pid} {kind}"] = Path(f"/proc/{process.pid}/{kind}").read_bytes()
        for own in ("tmp/ropewalk*", "tmp/state", "run/ropewalk*", "dev/shm"):
            for path in machine.path("/").glob(f"{own}/**/*"):
                if path.is_file():
                    texts[f"{machine.name} {path}"] = path.read_bytes()
        assert any(f"{machine.name} /proc" in where for where in texts), "each has at least the project's files"
    for path in cluster.folder.rglob("*"):
        if path.is_file():
            texts[str(path)] = path.read_bytes()
    return [where for where, text in texts.items() if any(secret.encode() in text for secret in secrets)]


def open_entries(machine: Machine) -> list[str]:
    """What others than the user may enter or change of the folders of runs."""
    found: list[str] = []
    folders = [path for own in ("/tmp", "/run") for path in machine.path(own).glob("ropewalk*")]
    assert folders
    for folder in folders:
        if folder.stat().st_mode & 0o077:
            found.append(str(folder))
        for path in folder.rglob("*"):
            mode = path.lstat().st_mode
            if mode & 0o022 or (stat.S_ISSOCK(mode) and mode & 0o077):
                found.append(f"{path} {stat.filemode(mode)}")
    return found


#: What an agent would say of itself if it were another one.
OTHER_AGENTS = {
    "ropewalk": ("import ropewalk.version as v; v.VERSION = '0.0.1'", "has ropewalk '0.0.1'", "install ropewalk=="),
    "Python": (
        "import sys, types, ropewalk.transport.handshake as h; h.sys = types.SimpleNamespace(version_info=(3, 99, 0))",
        "runs Python 3.99 and the launcher",
        f"start that side with Python {sys.version_info[0]}.{sys.version_info[1]}",
    ),
}


# An agent that the launcher dials was asked again for 30 s, and what it had said was not shown.
@pytest.mark.parametrize(("what", "dials"), [("ropewalk", "agent"), ("Python", "agent"), ("ropewalk", "launcher")])
def test_an_agent_of_another_version_is_refused_with_what_to_change(
    lab: Lab, tmp_path: Path, what: str, dials: str
) -> None:
    change, said, advice = OTHER_AGENTS[what]

    def prepare(head: Machine, _hosts: list[Machine]) -> None:
        if dials == "launcher":
            lab.nat(head)

    with cluster_of(lab, tmp_path, 2, prepare=prepare) as cluster:
        other = tmp_path / "other-python"
        run_agent = "import runpy; runpy.run_module('ropewalk.processes.agent_main', run_name='__main__')"
        other.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "{change}; {run_agent}"\n')
        other.chmod(0o700)
        script = cluster.launch(
            """
            with session(hosts=2) as here:
                with rw.Pool(2, session=here) as pool:
                    try:
                        pool.map(where, range(4))
                    except rw.StartFailed as error:
                        say(error)
            """,
            python=str(other),
        )
        words = script.line()
        assert said in words
        assert advice in words
        code, _, errors = script.end()
        assert code == 0, errors
        assert len(cluster.spool.started) == 2, "others would have been refused as well"


@pytest.mark.parametrize("hours", [-1, 1])
def test_clocks_of_hosts_may_differ_by_an_hour(lab: Lab, tmp_path: Path, hours: int) -> None:
    with cluster_of(lab, tmp_path, 1) as cluster:
        script = cluster.launch(
            """
            import datetime, types
            import ropewalk.transport.authority as authority

            class Clock(datetime.datetime):
                @classmethod
                def now(cls, tz=None):
                    return datetime.datetime.now(tz) + datetime.timedelta(hours=HOURS)

            authority.datetime = types.SimpleNamespace(
                datetime=Clock, timedelta=datetime.timedelta, UTC=datetime.timezone.utc
            )
            with session(hosts=1) as here:
                with rw.Pool(2, session=here) as pool:
                    say(*sorted({host for _, host, _ in pool.map(where, range(100))}))
                    say(len(pool.status().events))
            """.replace("HOURS", str(hours))
        )
        assert script.line() == "n1"
        assert script.numbers() == [0]
        code, _, errors = script.end()
        assert code == 0, errors


@needs_root
def test_a_folder_that_a_stranger_fills_is_neither_sent_to_hosts_nor_imported_there(lab: Lab, tmp_path: Path) -> None:
    """The launcher's working folder is everyone's, and another user has put modules and a project's marker there."""
    shared, ran = tmp_path / "everybodys", tmp_path / "ran"
    shared.mkdir()
    code = f"import sys\nopen({str(ran)!r}, 'a').write(__name__ + ' in ' + ' '.join(sys.orig_argv))\n"
    for name in ("psutil", "msgspec", "cloudpickle", "json", "logging", "ropewalk", "planted"):
        (shared / f"{name}.py").write_text(code)
    (shared / "pyproject.toml").write_text("")
    for path in (shared, *shared.iterdir()):
        os.chown(path, MALLORY, MALLORY)
    shared.chmod(0o1777)
    with cluster_of(lab, tmp_path, 1) as cluster:
        script = cluster.launch(
            """
            def look(_):
                try:
                    import planted
                except ImportError:
                    found = "not found"
                else:
                    found = "imported"
                sent = [folder for folder in sys.path if os.path.exists(os.path.join(folder, "planted.py"))]
                return socket.gethostname(), found, len(sent)

            os.chdir(os.path.join(FOLDER, "everybodys"))
            with session(hosts=1) as here:
                with rw.Pool(1, session=here) as pool:
                    say(*pool.map(look, range(1))[0])
            """
        )
        assert script.line() == "n1 not found 0"
        code, _, errors = script.end()
        assert code == 0, errors
    assert not ran.exists(), ran.read_text()
