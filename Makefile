# make run   sets everything up and runs the search of config.toml
# make test  sets everything up and runs linters, type checks and tests      (make test ARGS="-k softmax")
# make lint  linters and type checks alone
# make clean removes the virtual environment and all caches; saved sessions stay

.PHONY: run test lint clean compiler
.DEFAULT_GOAL := run
MAKEFLAGS += --no-print-directory

# The first Python that is new enough; another one: make run PYTHON=/path/to/python
PYTHON ?= $(shell for each in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done)
CONFIG ?= config.toml
VENV := .venv
BIN := $(VENV)/bin
# Tests start hundreds of processes, each of which would compile what it imports if no byte code were kept.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
AGAIN := $(PYTEST) -n 0 --last-failed --last-failed-no-failures none
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

run: $(VENV)/.installed compiler
	@$(BIN)/kernel-tui $(CONFIG)

# Neighbouring tests share what takes long to make: each worker begins in another place and takes from the others when it
# is through. Tests marked serial measure time or load the machine, so they run alone, after the others. Status 5 means
# that ARGS left nothing to run in one of the two. What failed is run once more, by itself: on a host that other virtual
# machines share, any process may stand still for a second.
test: lint compiler
	$(PYTEST) -n 5 --dist worksteal -m "not serial" $(ARGS) || test $$? -eq 5 || $(AGAIN) -m "not serial" $(ARGS)
	$(PYTEST) -n 0 -m serial $(ARGS) || test $$? -eq 5 || $(AGAIN) -m serial $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPY_NUM_WORKERS=auto $(BIN)/mypy

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
	find . -name __pycache__ -not -path './sessions/*' -prune -exec rm -rf {} +

# Installed again only when what is to be installed has changed.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "make: installing kernel-tui and PyTorch into $(VENV), once. Most of it is a download of gigabytes: minutes, in" \
		"which pip says nothing. For the CPU alone there is a smaller one: see docs/install.md."
	@$(INSTALL) -e .
	@echo "make: installed"
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "make: installing kernel-tui, PyTorch and the tools of its tests into $(VENV), once. Where PyTorch is not there" \
		"yet, that is a download of gigabytes: minutes, in which pip says nothing."
	@$(INSTALL) -e '.[dev]'
	@echo "make: installed"
	@touch $@ $(VENV)/.installed

$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or later found. Install one (Debian, Ubuntu: apt install python3" \
		"python3-venv), or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is not Python 3.11 or" \
		"later. Name one that is: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) cannot make virtual environments." \
		"Install its venv module (Debian, Ubuntu: apt install python3-venv) and run make again." >&2; exit 1; }
	@echo "make: making the virtual environment $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

compiler:
	@for each in $${CXX:-g++ clang++ c++}; do command -v $$each >/dev/null 2>&1 && exit 0; done; \
		echo "make: no C++ compiler found. Install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++;" \
		"Arch: pacman -S gcc) and run make again." >&2; exit 1
