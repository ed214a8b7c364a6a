# Everything here needs only Python 3.11+ with pip and venv; it makes its own environment in .venv.
#
#   make demo    install, then evolve a policy for CartPole on four workers
#   make test      install, then run the tests; they need nothing else
#   make lab       install what tests of engines run for real (Slurm, Docker, sshd, Ray, MPI); needs root and apt
#   make test-lab  run those
#   make test-gpu  run those that need a GPU that torch can use
#   make retest    what failed in `make test`, or with RUN=test-lab in that: five times, beside busy processes
#   make soak      the tests that run for minutes; make soak-slice: a seventh of them, another one on each day
#   make timing    the tests that compare times, alone
#   make mutants   plant mistakes in the deciders, one at a time; NAMES="task_table gd_sec" for some, NAMES=--stale for those that changed
#   make coverage  lines and branches that the tests run, by package; OF="tests/pool tests/calls" for some of the tests
#   make check     lint, formatting, types and import contracts
#   make docs      the site of the documentation, in build/site; needs no network once it is installed
#   make bench     the benchmark tables of pool and calls
#   make gallery   run the examples, and make the pictures of docs/gallery.md again
#   make clean     remove the environment and caches

VENV := .venv
BIN := $(VENV)/bin
# Without compiling everything: what is imported is compiled then, and of 2 GB of packages that is a small part.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# An editable install sees changes of the sources by itself; only pyproject.toml asks for a new one.
STAMPS := $(VENV)/stamps

.PHONY: everything demo test test-lab test-gpu retest lab check bench soak soak-slice handler-slice timing mutants coverage gallery clean help
# Two installs into one environment at the same time would spoil it.
.NOTPARALLEL:

help:
	@sed -n '3,17p' Makefile | cut -c3-

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

# What CI needs, by one resolution of versions instead of three.
everything: pyproject.toml | $(STAMPS)/venv
	@echo "installing ropewalk[dev,lab,docs] into $(VENV)"
	@$(PIP) --editable '.[dev,lab,docs]'
	@touch $(addprefix $(STAMPS)/,dev lab docs test mutants)

# One stamp per extra: es, test, lab, dev, docs, bench, mutants.
$(STAMPS)/%: pyproject.toml | $(STAMPS)/venv
	@echo "installing ropewalk[$*] into $(VENV)"
	@$(PIP) --editable '.[$*]'
	@touch $@

demo: $(STAMPS)/es
	$(BIN)/ropewalk run examples/evolve_cartpole.py --workers 4

# Runs pytest, and keeps in build/tests what became of it.
# -P: its folder, which has a package named typing, stays off the path.
RUN_TESTS := $(BIN)/python -P tests/run_tests.py

# Tests at a time: many of them wait. Beside the tests of the lab `.ci/run` says three.
AT_ONCE := 4
test: $(STAMPS)/test
	@echo "==> without real clusters: \`make lab\` installs them, and \`make test-lab\` runs what needs them"
	@$(RUN_TESTS) test -n $(AT_ONCE) -m "not lab and not gpu and not soak and not timing"

test-lab: $(STAMPS)/lab
	@$(RUN_TESTS) test-lab -n 2 -m "lab and not soak and not timing"

test-gpu: $(STAMPS)/test
	@$(RUN_TESTS) test-gpu -m gpu tests/gpu

RUN := test
# Options of pytest that the run had, if its tests mean something else without them.
WITH :=
retest: $(STAMPS)/test
	@$(RUN_TESTS) --again $(RUN) $(WITH)

lab: $(STAMPS)/lab
	tests/lab/install.sh

check: $(STAMPS)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --threads $(shell nproc) --pythonpath $(BIN)/python
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python
	$(BIN)/python -m tests.typing.public_interface
	$(BIN)/lint-imports

# The theme prints advice on its successor; this variable leaves that out.
.PHONY: docs
docs: $(STAMPS)/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open build/site/index.html"

bench: $(STAMPS)/bench
	@# A table with a line that falls short ends with 1; the other one is still made.
	@$(BIN)/python benchmarks/pool.py; first=$$?; $(BIN)/python benchmarks/calls.py && exit $$first

soak: $(STAMPS)/test
	@$(RUN_TESTS) soak -n 2 -m soak

# The number of the day of the week, from 1 on.
DAY := $(shell date +%u)
soak-slice: $(STAMPS)/test
	@echo "==> part $(DAY) of 7 of \`make soak\`; DAY=1 to DAY=7 run the others"
	@$(RUN_TESTS) soak-slice -n 3 -v -m soak --slice $$(($(DAY) - 1))/7

# Programs with a handler of SIGALRM take another path through calls (see CONTRIBUTING.md).
handler-slice: $(STAMPS)/test
	@echo "==> part $(DAY) of 7 of what a handler of SIGALRM changes, with one"
	@$(RUN_TESTS) handler-slice -n 3 --with-handler -m "not lab and not gpu and not soak and not timing" \
	    --slice $$(($(DAY) - 1))/7 tests/pool tests/calls tests/sharing tests/scenarios

timing: $(STAMPS)/test
	@$(RUN_TESTS) timing -m timing

mutants: $(STAMPS)/mutants
	@$(BIN)/python -m tests.mutants.run $(NAMES)

coverage: $(STAMPS)/dev
	@$(BIN)/python -m tests.coverage_by_package $(OF)

gallery: $(STAMPS)/test
	$(BIN)/python -m docs.gallery.make

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
