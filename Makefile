# make finetune: fine-tune a language model; make train: train one from public text; make test: every test.
# Each does all the set-up that it needs. Python 3.11, 3.12 or 3.13 is required.

# An explicit PYTHON must be right; otherwise the first suitable one is taken.
CANDIDATES := $(or $(PYTHON),python3.13 python3.12 python3.11 python3 python)
IS_SUPPORTED := import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
VENV := .venv
NULL := /dev/null
version = $(shell $(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>$(NULL))
# What TFF needs beside current packages; each start of the environment's Python imports it.
SHIM := tff_compatibility
SITE = $$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
RUN ?= runs/docstrings
FLAGS ?= experiments/stackoverflow/flags/docstrings.flags
TRAIN = $(VENV)/bin/python -m experiments.stackoverflow.train \
  --flagfile=$(FLAGS) --resume
TESTS ?= tests
# Processes that test at the same time: one more than two cores, as some wait.
JOBS ?= 3
# Text, ε and folder of `make finetune`; without TEXT that of people, where the machine has it.
TEXT ?=
EPSILON ?= 2
FINETUNE_RUN = $(if $(filter file,$(origin RUN)),runs/finetune,$(RUN))
STUDY ?= docstrings
STUDY_RUN ?= runs/studies/$(STUDY)
# Tests that need TensorFlow Federated; the others make up test-core.
TFF_TESTS := tests/aggregators tests/auditing/test_processes.py \
  tests/docs/test_programs.py tests/experiments tests/noise/stream \
  tests/rounds/test_equal_to_tff.py tests/tff_inprocess \
  tests/study/test_own_model.py tests/training
# One thread for linear algebra, as the command line has.
PYTEST_FLAGS := --numprocesses=$(JOBS) --dist=worksteal
CORE_PYTHON := $(or $(PYTHON),python3)
CORE_VENV = .venv-core
# The peer of the benchmarks has an environment, and a Python, of its own.
BENCH_VENV = .venv-bench
BENCH_CANDIDATES := python3.11 python3.12 python3.13 python3
IS_NEW := import sys; sys.exit(sys.version_info < (3, 11))
BENCH ?=
REPEATS ?= 3
COMMA := ,

.PHONY: env finetune train study matrices test test-fast test-thorough test-core test-adapters check docs \
  bench clean

env: $(VENV)/installed

# Each environment is made under a lock, and looked at again once it is held: a
# second `make` waits for the first, and finds the environment there.
LOCKED_MAKE = .ci/locked.py $(1).lock $(MAKE) --no-print-directory LOCKED=1

# An environment of another version than an explicit PYTHON's is made anew.
ifdef PYTHON
ifneq ($(call version,$(PYTHON)),$(call version,$(VENV)/bin/python))
$(VENV)/installed: anew
.PHONY: anew
endif
endif

# The environment of `make finetune` has JAX and the model's weights, and no TensorFlow.
ENVIRONMENTS := $(VENV)/installed .venv-finetune/installed
$(VENV)/installed: requirements.lock .ci/$(SHIM).py setup.py
.venv-finetune/installed: requirements-finetune.lock setup.py
ifndef LOCKED
$(ENVIRONMENTS):
	@for candidate in $(CANDIDATES); do \
	  if "$$candidate" -c '$(IS_SUPPORTED)' 2>$(NULL); then \
	    python="$$candidate"; break; fi; done; \
	if [ -z "$$python" ]; then \
	  echo "Training needs x86-64 Linux and Python 3.11 to 3.13 (TensorFlow for 3.14 is not final)." \
	    "Debian: apt install python3-venv. Ubuntu: add-apt-repository ppa:deadsnakes/ppa;" \
	    "apt install python3.13-venv. macOS, all but training: brew install python@3.13;" \
	    "python3.13 -m pip install . PYTHON=PATH names one." >&2; exit 2; fi; \
	"$$python" $(call LOCKED_MAKE,$(@D)) PYTHON="$$python" $@
else
$(ENVIRONMENTS):
	@echo "Setting up $(@D) with $$($(PYTHON) --version)" >&2
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --require-hashes --ignore-requires-python -r $(filter %.lock,$^)
	@if [ $(@D) = $(VENV) ]; then cp .ci/$(SHIM).py "$(SITE)"; \
	  echo "import $(SHIM)" >"$(SITE)/$(SHIM).pth"; fi
	@$(@D)/bin/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --no-build-isolation --editable .
	@touch $@
endif

# SmolLM2-135M from people's text, without noise and with BLT noise; goes on where it was interrupted.
finetune: .venv-finetune/installed
	@.venv-finetune/bin/python -m experiments.finetune --epsilon=$(EPSILON) \
	  --output_dir='$(FINETUNE_RUN)' $(if $(TEXT),--text='$(TEXT)')

# The same training twice, without and with noise, to see what the noise costs.
# Goes on where it was interrupted; RUN=runs/another starts anew.
train: env
	@echo "1 of 2: without noise, for comparison" >&2
	@$(TRAIN) --noise_multiplier=0 --output_dir=$(RUN)-no-noise >$(NULL)
	@echo "2 of 2: with correlated noise" >&2
	@$(TRAIN) --output_dir=$(RUN) --compare_with=$(RUN)-no-noise

# Compares mechanisms by training: STUDY=docstrings, synthetic or stackoverflow.
# Goes on where it was interrupted.
study: env
	$(VENV)/bin/python -m experiments.stackoverflow.study \
	  --study=studies/$(STUDY).json --output_dir=$(STUDY_RUN)

# Every strategy file anew; one thread, so that sums come out the same each time.
matrices: env
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
	  $(VENV)/bin/python -m matrices.recipes

# Tests start many processes: what one has compiled, the others need not.
test test-fast test-thorough test-core: export PYTHONDONTWRITEBYTECODE =

# JOBS=0 shows output as it comes. Checks and documentation are made beside the tests.
test: env
	@$(MAKE) --no-print-directory --jobs=3 tests check docs

.PHONY: tests
tests:
	OPENBLAS_NUM_THREADS=1 $(VENV)/bin/python -m pytest $(PYTEST_FLAGS) --timeout=600 $(TESTS)

test-fast: env
	OPENBLAS_NUM_THREADS=1 $(VENV)/bin/python -m pytest $(PYTEST_FLAGS) --timeout=600 -m 'not slow' $(TESTS)

# More random examples, other ones each time, and all rows of published tables.
test-thorough: env
	OPENBLAS_NUM_THREADS=1 $(VENV)/bin/python -m pytest $(PYTEST_FLAGS) --timeout=600 --thorough $(TESTS)

# Format, lint, the import contract and types, as pyproject.toml configures them; and
# how large each part is, beside its ceiling.
check: .venv-checks/installed
	.venv-checks/bin/ruff format --quiet --check .
	.venv-checks/bin/ruff check --quiet .
	PYTHONPATH=. .venv-checks/bin/lint-imports --no-logo
	.venv-checks/bin/mypy
	@$(VENV)/bin/python -m tests.sizes

# The notebooks are run, and the documentation site is made in site/; a broken link or reference is
# an error.
docs: env .venv-docs/installed
	$(VENV)/bin/python .ci/notebooks.py examples/*.ipynb
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/python -m mkdocs build --quiet --strict --site-dir site

# Each of these tools has an environment of its own, so that no pin of theirs can
# disagree with TensorFlow Federated's.
ifndef LOCKED
.venv-checks/installed .venv-docs/installed: .venv-%/installed: \
    requirements-%.lock $(VENV)/installed
	@$(VENV)/bin/python $(call LOCKED_MAKE,.venv-$*) PYTHON=$(VENV)/bin/python $@
else
.venv-checks/installed .venv-docs/installed: .venv-%/installed: requirements-%.lock
	@echo "Setting up .venv-$*" >&2
	@$(PYTHON) -m venv --clear .venv-$*
	@.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check \
	  --no-deps --require-hashes -r $<
	@touch $@
endif

# The parts without TensorFlow, installed as `pip install .` installs them.
test-core:
ifndef LOCKED
	@$(CORE_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "PYTHON=$(CORE_PYTHON) is not Python 3.11 or newer" >&2; exit 2; }
	@$(CORE_PYTHON) $(call LOCKED_MAKE,$(CORE_VENV)) PYTHON=$(CORE_PYTHON) $@
else
	$(CORE_PYTHON) -m venv --clear $(CORE_VENV)
	@$(CORE_VENV)/bin/python -m pip install --quiet \
	  --disable-pip-version-check '.[test]'
	OPENBLAS_NUM_THREADS=1 $(CORE_VENV)/bin/pytest $(PYTEST_FLAGS) \
	  $(addprefix --ignore=,$(TFF_TESTS)) $(TESTS)
endif

# The adapters and their examples with the releases of examples/requirements.txt, and without
# TensorFlow. This environment takes minutes to set up, mostly for PyTorch and Ray.
test-adapters: .venv-adapters/installed
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 .venv-adapters/bin/python -m pytest \
	  --ignore=tests/rounds/test_equal_to_tff.py tests/adapters tests/rounds

ifndef LOCKED
.venv-adapters/installed: examples/requirements.txt setup.py
	@$(CORE_PYTHON) $(call LOCKED_MAKE,.venv-adapters) PYTHON=$(CORE_PYTHON) $@
else
.venv-adapters/installed: examples/requirements.txt setup.py
	@echo "Setting up .venv-adapters" >&2
	@$(PYTHON) -m venv --clear .venv-adapters
	@.venv-adapters/bin/python -m pip install --quiet --disable-pip-version-check \
	  -r examples/requirements.txt --editable '.[test]'
	@touch $@
endif

# `.venv/bin/python -m benchmarks --help` lists the names for BENCH.
bench: env
	$(VENV)/bin/python -m benchmarks $(subst $(COMMA), ,$(BENCH)) --repeats=$(REPEATS)

ifndef LOCKED
$(BENCH_VENV)/installed: benchmarks/peer-requirements.txt
.venv-pfl/installed: benchmarks/pfl-requirements.txt
$(BENCH_VENV)/installed .venv-pfl/installed:
	@for candidate in $(BENCH_CANDIDATES); do \
	  if "$$candidate" -c '$(IS_NEW)' 2>$(NULL); then \
	    python="$$candidate"; break; fi; done; \
	if [ -z "$$python" ]; then \
	  echo "the peers need Python 3.11 or newer, which is not here" >&2; \
	  exit 2; fi; \
	"$$python" $(call LOCKED_MAKE,$(@D)) PYTHON="$$python" $@
else
$(BENCH_VENV)/installed: benchmarks/peer-requirements.txt
.venv-pfl/installed: benchmarks/pfl-requirements.txt
$(BENCH_VENV)/installed .venv-pfl/installed:
	@echo "Setting up $(@D) with $$($(PYTHON) --version)" >&2
	@$(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip install --quiet \
	  --disable-pip-version-check -r $<
	@touch $@
endif

clean:
	rm -rf $(VENV) $(CORE_VENV) .venv-adapters .venv-finetune .venv-docs .venv-checks .venv-pfl $(BENCH_VENV) $(VENV)*.lock site build *.egg-info \
	  .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
