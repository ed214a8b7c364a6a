"""The Dockerfile of this repository builds an image in which jobs run; here without a network and without a registry.

The base image is made of this machine's Python, and of wheels that pip has fetched here.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropewalk.engines.docker import DockerEngine
from tests.lab.docker import DockerHost
from tests.lab.machine import MORE_PATHS, REPOSITORY

#: A build takes 15 s here, and three times as much beside other work.

BASE, IMAGE = "base:1", "ropewalk-built:1"
#: What `useradd` and the shell of RUN need, besides Python.
PROGRAMS = ("sh", "useradd", "rm", "timeout")
LEFT_OUT = re.compile(r"/(tests?|idlelib|turtledemo|__pycache__|site-packages/(?!pip)[^/]+|config-3[^/]+)(/|$)|\.a$")
#: What wheels load besides, from the folder of libc.
MORE_LIBRARIES = ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libgcc_s.so.1", "libresolv.so.2")


def test_the_image_has_this_python_and_this_ropewalk_and_runs_as_nobody_special(image: DockerHost) -> None:
    engine = DockerEngine({**image.options, "image": IMAGE, "python": "python3", "volumes": []})
    try:
        findings = {finding.what: finding for finding in engine.check()}
        assert findings[f"Python in {IMAGE}"].ok, findings[f"Python in {IMAGE}"].detail
    finally:
        engine.close()
    assert image.docker("run", "--rm", "--network=none", IMAGE, "sh", "-c", "echo $HOME") == "/home/ropewalk"
    code = "import os, getpass; print(os.getuid(), getpass.getuser(), os.getcwd(), os.access('.', os.W_OK))"
    said = image.docker("run", "--rm", "--network=none", IMAGE, "python3", "-c", code)
    assert said == "1000 ropewalk /home/ropewalk True"
    assert "Usage" in image.docker("run", "--rm", "--network=none", IMAGE)


def test_the_image_holds_the_package_and_not_the_repository(image: DockerHost) -> None:
    code = "import os, ropewalk; print(os.path.exists('/build'), ropewalk.__file__)"
    said = image.docker("run", "--rm", "--network=none", IMAGE, "python3", "-c", code)
    assert said.startswith("False ") and said.endswith("site-packages/ropewalk/__init__.py")


def test_the_dockerfile_names_no_registry() -> None:
    lines = (REPOSITORY / "Dockerfile").read_text().splitlines()
    instructions = [line for line in lines if not line.startswith("#")]
    assert "ARG BASE=python:3.11-slim" in instructions
    assert not any("://" in line or re.search(r"\b[\w-]+\.(io|com|org|net|dev)\b", line) for line in lines)


@pytest.fixture(scope="module")
def image(docker_host: DockerHost, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerHost]:
    if Path(sys.base_prefix) == Path("/usr"):
        pytest.skip("this Python is spread over /usr; a base image is made only of one with a folder of its own")
    wheels = tmp_path_factory.mktemp("wheels")
    _fetch_wheels(wheels)
    _pack_base(docker_host.machine.path("/tmp/base.tar"), wheels)
    path = f"ENV PATH={sys.base_exec_prefix}/bin:/usr/bin"
    docker_host.docker("import", "--change", path, "/tmp/base.tar", BASE)
    docker_host.machine.path("/tmp/base.tar").unlink()
    arguments = (f"BASE={BASE}", "PIP_OPTIONS=--no-index --find-links /wheels")
    words = [word for argument in arguments for word in ("--build-arg", argument)]
    docker_host.docker("build", "--network=none", "--tag", IMAGE, *words, str(REPOSITORY))
    yield docker_host
    docker_host.docker("rmi", "--force", IMAGE, BASE)


def _fetch_wheels(folder: Path) -> None:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    wanted = [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--wheel-dir", folder, *wanted], check=True)


def _pack_base(target: Path, wheels: Path) -> None:
    """This Python at its own path, the libraries that it and a few programs load, and the wheels."""
    python = Path(sys.base_prefix)
    path = f"{os.environ['PATH']}:{MORE_PATHS}"
    programs = [Path(found).resolve() for name in PROGRAMS if (found := shutil.which(name, path=path))]
    interpreter = Path(sys.base_exec_prefix, "bin", f"python3.{sys.version_info.minor}")
    extensions = list(python.glob("lib/python3*/lib-dynload/*.so"))
    with tarfile.open(target, "w") as tar:
        _folder(tar, "tmp", 0o1777)
        folders = {"proc", "sys", "dev", "run", "root", "var", "home", "etc", "sbin", "usr"}
        for name in sorted(folders | {str(parent).lstrip("/") for parent in python.parents[:-1]}):
            _folder(tar, name)
        for name in ("bin", "lib", "lib64"):
            _link(tar, name, f"usr/{name}")
        for program in programs:
            tar.add(program, f"usr/bin/{program.name}")
        _link(tar, "usr/bin/sh", next(program.name for program in programs if "sh" in program.name))
        for library in _libraries([*programs, interpreter, *extensions]):
            tar.add(library.resolve(), str(library).lstrip("/"))
        for name in ("python3", "python"):
            _link(tar, f"usr/bin/{name}", str(interpreter))
        tar.add(python, filter=lambda entry: None if LEFT_OUT.search(f"/{entry.name}") else entry)
        tar.add(wheels, "wheels")
        _file(tar, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\n")
        _file(tar, "etc/group", b"root:x:0:\n")


def _libraries(programs: list[Path]) -> set[Path]:
    said = subprocess.run(["ldd", *programs], capture_output=True, text=True).stdout
    found = {Path(path) for path in re.findall(r"(/\S+\.so\S*) \(0x", said)}
    found = {path for path in found if not path.is_relative_to(sys.base_prefix)}
    libc = next(path for path in found if path.name.startswith("libc.so"))
    found |= {libc.with_name(name) for name in MORE_LIBRARIES if libc.with_name(name).exists()}
    # /lib is a link to /usr/lib.
    return {Path("/usr") / str(path).lstrip("/") if path.parts[1].startswith("lib") else path for path in found}


def _folder(tar: tarfile.TarFile, name: str, mode: int = 0o755) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = tarfile.DIRTYPE, mode
    tar.addfile(entry)


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    tar.addfile(entry)


def _file(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    tar.addfile(entry, io.BytesIO(content))
