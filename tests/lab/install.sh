#!/usr/bin/env bash
# Installs from Debian's packages what tests run for real: Slurm, Docker, sshd, PostgreSQL, Chromium, the network tools,
# CPython's own tests.
#
#   tests/lab/install.sh
#
# Quick when everything is there already. Needs root and a Debian or Ubuntu; `make test` needs none of it, and skips
# CPython's own tests without it. Left out on purpose: kubernetes-client, which clashes with other kubectl
# packages over /usr/bin/kubectl and leaves apt half configured; the tests need no kubectl.
set -euo pipefail
export PATH="$PATH:/usr/sbin:/sbin"

# One program of each package tells whether the package is there.
declare -A package_of=(
    [slurmctld]=slurmctld [slurmd]=slurmd [sbatch]=slurm-client [munged]=munge
    [dockerd]=docker.io [containerd]=containerd [runc]=runc
    [iptables]=iptables [nft]=nftables [ip]=iproute2
    [sshd]=openssh-server [ssh]=openssh-client [ps]=procps [nsenter]=util-linux
    [chromium]=chromium [chromedriver]=chromium-driver
)

# CPython's own tests, which Debian keeps apart from its Python.
has_tests_of_python() {
    local python
    for python in python3 python3.{11..14} "$HOME"/.pyenv/versions/*/bin/python; do
        "$python" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("test.test_concurrent_futures"))' \
            2>/dev/null && return
    done
    return 1
}

# Debian keeps the programs of PostgreSQL off the PATH, in a folder for each version.
has_postgresql() {
    compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null
}

missing_packages() {
    local program
    for program in "${!package_of[@]}"; do
        command -v "$program" >/dev/null || echo "${package_of[$program]}"
    done | sort
    has_tests_of_python || echo libpython3-testsuite
    has_postgresql || echo postgresql
}

fail() {
    echo "tests/lab/install.sh: $*" >&2
    exit 1
}

mapfile -t missing < <(missing_packages)
if ((${#missing[@]} == 0)); then
    echo "the lab's packages are all there"
    exit 0
fi
command -v apt-get >/dev/null || fail "needs apt-get (Debian or Ubuntu) to install: ${missing[*]}"
((EUID == 0)) || fail "needs root to install: ${missing[*]}. Say: sudo $0"

export DEBIAN_FRONTEND=noninteractive
# Without these answers apt stops and asks when a configuration file was changed; with a lock held it gives up at once.
options=(-qq --yes --no-install-recommends
    -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold
    -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3)
echo "installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# The lists on this machine may be fresh enough; only if they are not are they fetched.
if ! apt-get "${options[@]}" install "${missing[@]}" >"$log" 2>&1; then
    if ! { apt-get -qq -o Acquire::Retries=3 update && apt-get "${options[@]}" install "${missing[@]}"; } >>"$log" 2>&1; then
        cat "$log" >&2
        fail "apt could not install ${missing[*]}; its words are above. Look for a broken source in" \
            "/etc/apt/sources.list* and for half configured packages with: dpkg --audit"
    fi
fi
mapfile -t missing < <(missing_packages)
((${#missing[@]} == 0)) || fail "apt is content, but no program of these packages is on the PATH: ${missing[*]}"
