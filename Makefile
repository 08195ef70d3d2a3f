# make run      installs everything and runs the search of config.toml
# make test     installs everything and runs linters, type checks and tests      (make test ARGS="-k softmax")
# make lint     runs linters, type checks and a strict build of the manual, but no tests
# make docs     updates the generated parts of the reference pages, and builds the manual into build/site
# make gallery  judges every exploit in each language, every honest kernel in each setting, and every library call, and
#               resumes a session of every past format; `make test` does so for a fixed sample
# make clean    removes the virtual environment and the checkout's caches, but no sessions

.PHONY: run test lint docs gallery clean compiler
.DEFAULT_GOAL := run
MAKEFLAGS += --no-print-directory

# The first Python that is new enough. To choose another: make run PYTHON=/path/to/python
PYTHON ?= $(shell for each in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$each -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$each && break; done)
CONFIG ?= config.toml
VENV := .venv
BIN := $(VENV)/bin
# Keep bytecode: tests start hundreds of processes, and each would compile its imports again.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
GALLERY := tests/exploits tests/engine/evaluation/inspect/test_library_calls.py tests/test_recorded_sessions.py
# Do not add --quiet, which hides the warnings that --strict counts.
BUILD_DOCS := $(BIN)/python -m mkdocs build --strict
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

run: $(VENV)/.installed compiler
	@$(BIN)/kernel-tui $(CONFIG)

# Neighboring tests share expensive fixtures, so each worker gets a contiguous block of tests and steals from others when
# it is done. Four workers keep two cores busy, since many tests wait for a terminal or a device. Tests marked serial
# measure time or load the machine, so they run alone, after the others. Status 5 means that ARGS selected no test. A test
# that needs a quiet machine uses the fixture quiet_machine, which skips the test on a busy machine.
test: lint compiler
	$(PYTEST) -n 4 --dist worksteal -m "not serial and not gallery" $(ARGS) || test $$? -eq 5
	$(PYTEST) -n 0 -m "serial and not gallery" $(ARGS) || test $$? -eq 5

gallery: $(VENV)/.installed-dev compiler
	$(PYTEST) -n 0 $(GALLERY) $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	MYPY_NUM_WORKERS=auto $(BIN)/mypy
	$(BIN)/lint-imports --cache-dir .ruff_cache/imports
	$(BUILD_DOCS)

docs: $(VENV)/.installed-dev
	$(BIN)/python docs/generate.py
	$(BUILD_DOCS)
	@echo "make: the manual is in build/site/index.html"

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
	find . -name __pycache__ -not -path './sessions/*' -prune -exec rm -rf {} +

# Reinstall only when the dependencies have changed.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "make: installing kernel-tui and PyTorch into $(VENV). The first time, pip downloads gigabytes and prints" \
		"nothing for minutes. For a smaller CPU-only PyTorch, see docs/how-to/install.md."
	@$(INSTALL) -e .
	@echo "make: installed"
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/pip
	@echo "make: installing kernel-tui, PyTorch and the test tools into $(VENV). The first time, pip downloads gigabytes" \
		"and prints nothing for minutes."
	@# Half of the time would go into bytecode, most of which no test needs. The import writes PyTorch's, since builders of
	@# Python kernels may not.
	@$(INSTALL) --no-compile -e '.[dev]'
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -c 'import torch._inductor.compile_fx, torch.utils.cpp_extension'
	@echo "make: installed"
	@touch $@ $(VENV)/.installed

$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or later found. Install one (Debian, Ubuntu: apt install python3" \
		"python3-venv), or give its path: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) is not Python 3.11 or" \
		"later. Give the path of a newer Python: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "make: $(PYTHON) cannot create virtual environments." \
		"Install its venv module (Debian, Ubuntu: apt install python3-venv) and run make again." >&2; exit 1; }
	@echo "make: creating the virtual environment $(VENV) with $(PYTHON)"
	@$(PYTHON) -m venv $(VENV)

compiler:
	@for each in $${CXX:-g++ clang++ c++}; do command -v $$each >/dev/null 2>&1 && exit 0; done; \
		echo "make: no C++ compiler found. Install one (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++;" \
		"Arch: pacman -S gcc) and run make again." >&2; exit 1
