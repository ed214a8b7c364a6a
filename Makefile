# Everything here needs only Python 3.11+ with pip and venv; it makes its own environment in .venv.
#
#   make demo    install, then evolve a policy for CartPole on four workers
#   make test    install, then run all tests
#   make retest  what failed in the last of these, alone
#   make lab     install what the tests of engines run for real (Slurm, Docker, sshd, Ray, MPI); needs root and apt
#   make check   lint, formatting, types and import contracts
#   make bench   the benchmark tables of pool and calls
#   make soak    the tests that run for minutes
#   make clean   remove the environment and caches

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# An editable install sees changes of the sources by itself; only pyproject.toml asks for a new one.
STAMPS := $(VENV)/stamps

.PHONY: demo test retest lab check bench soak clean help
# Two installs into one environment at the same time would spoil it.
.NOTPARALLEL:

help:
	@sed -n '3,10p' Makefile | cut -c3-

# The first Python on the path that is new enough; `make PYTHON=/path/to/python3.12 ...` chooses another.
$(STAMPS)/venv:
	@set -e; \
	for python in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then chosen="$$python"; break; fi; \
	done; \
	if [ -z "$$chosen" ]; then \
	    echo "ropewalk needs Python 3.11 or newer; none was found. Install one, or say make PYTHON=/path/to/python3" >&2; \
	    exit 1; \
	fi; \
	echo "making $(VENV) with $$("$$chosen" --version)"; \
	"$$chosen" -m venv --clear $(VENV)
	@mkdir -p $(STAMPS) && touch $@

# One stamp per extra: es, test, lab, dev, bench.
$(STAMPS)/%: pyproject.toml | $(STAMPS)/venv
	@echo "installing ropewalk[$*] into $(VENV)"
	@$(PIP) --editable '.[$*]'
	@touch $@

demo: $(STAMPS)/es
	$(BIN)/ropewalk run examples/evolve_cartpole.py --workers 4

test: $(STAMPS)/test
	$(BIN)/python -m pytest -n 2

# What failed in the last `make test`, one after the other, and nothing else; the first that fails again ends it.
retest: $(STAMPS)/test
	@echo "==> failed beside others, and run again alone:"
	@$(BIN)/python -m pytest --last-failed --last-failed-no-failures none --collect-only -q -W ignore
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none --maxfail 1 -v
	@echo "==> passed only alone; see above for their names, and look into each"

# Not needed by `make test`, which skips with a reason what it cannot run.
lab: $(STAMPS)/lab
	tests/lab/install.sh

check: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

bench: $(STAMPS)/bench
	@# A table with a line that falls short ends with 1; the other one is still made.
	@$(BIN)/python benchmarks/pool.py; first=$$?; $(BIN)/python benchmarks/calls.py && exit $$first

soak: $(STAMPS)/test
	$(BIN)/python -m pytest -m soak --timeout 3600 -o faulthandler_timeout=0

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
