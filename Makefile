# make finetune: fine-tune a language model; make train: train one from public text; make test: every
# test; make dev: what changes without TensorFlow need.
# Each does all the set-up that it needs. Python 3.11, 3.12 or 3.13 is required; without TensorFlow
# 3.14 will do too.

VENV := .venv
NULL := /dev/null
RUN ?= runs/docstrings
FLAGS ?= experiments/stackoverflow/flags/docstrings.flags
TRAIN = $(VENV)/bin/python -m experiments.stackoverflow.train \
  --flagfile=$(FLAGS) --resume $(if $(SECRETS),--secrets=$(SECRETS))
TESTS ?= tests
# Processes that test at the same time: one more than two cores, as some wait.
JOBS ?= 3
# Text, ε, further flags and folder of `make finetune`; without TEXT that of people, where the machine
# has it.
TEXT ?=
EPSILON ?= 2
OPTIONS ?=
# Made-up devices, and made-up people with secrets in their texts, also of `make train`, beside the
# people.
CANARIES ?=
SECRETS ?=
FINETUNE_RUN = $(if $(filter file,$(origin RUN)),runs/finetune,$(RUN))
FINETUNE_FLAGS = --epsilon=$(EPSILON) --output_dir='$(FINETUNE_RUN)' $(if $(TEXT),--text='$(TEXT)') \
  $(if $(CANARIES),--canaries=$(CANARIES)) $(if $(SECRETS),--secrets=$(SECRETS)) $(OPTIONS)
STUDY ?= docstrings
STUDY_RUN ?= runs/studies/$(STUDY)
# Tests that need TensorFlow Federated; the others make up test-core.
TFF_TESTS := tests/tff/aggregators tests/prove/auditing/test_processes.py \
  tests/docs/test_programs.py tests/experiments tests/noise/stream \
  tests/run/test_equal_to_tff.py tests/tff_inprocess \
  tests/study/test_own_model.py tests/tff/training
# One thread for linear algebra, as the command line has.
PYTEST_FLAGS := --numprocesses=$(JOBS) --dist=worksteal
# An explicit PYTHON must be right; otherwise the first suitable one is taken. A line each makes an
# environment; any Python runs the script, which knows what to install where Pythons are missing.
ANY_PYTHON = $(firstword $(foreach p,python3 python3.13 python3.12 python3.11 python3.14 python $(PYTHON),\
  $(shell command -v $(p) 2>$(NULL))) python3)
ENVIRONMENT = @$(ANY_PYTHON) .ci/environment.py
# jax-privacy and pfl-research have environments of their own, with the oldest Python that serves.
PEER_PYTHONS := python3.11 python3.12 python3.13 python3
BENCH ?=
REPEATS ?= 3
COMMA := ,

.PHONY: env dev finetune train study matrices test test-fast test-dev test-thorough test-core test-adapters \
  check docs bench clean

env: $(VENV)/installed

# An explicit PYTHON may be of another version than that of the environment, which is then made anew.
ifdef PYTHON
$(VENV)/installed: anew
.PHONY: anew
endif

# What TFF needs beside current packages: each start of the environment's Python imports it.
SHIM := .ci/tff_compatibility.py
$(VENV)/installed: requirements.lock $(SHIM) setup.py pyproject.toml
	$(ENVIRONMENT) $(VENV) $< --training --python='$(PYTHON)' --shim=$(SHIM) \
	  --install='--no-deps --no-build-isolation --editable .'

# JAX and the weights of a language model, and no TensorFlow.
.venv-finetune/installed: requirements-finetune.lock setup.py pyproject.toml
	$(ENVIRONMENT) .venv-finetune $< --training --python='$(PYTHON)' \
	  --install='--no-deps --no-build-isolation --editable .'

# The tools have environments of their own, so that no pin of theirs can disagree with TensorFlow
# Federated's.
.venv-checks/installed .venv-docs/installed: .venv-%/installed: requirements-%.lock $(VENV)/installed
	$(ENVIRONMENT) .venv-$* $< --python=$(VENV)/bin/python

.venv-adapters/installed: examples/requirements.txt setup.py pyproject.toml
	$(ENVIRONMENT) .venv-adapters $< --python='$(PYTHON)' --install='--editable .[test]'

# All that needs no TensorFlow, and the tools, with current releases.
dev: .venv-dev/installed
	@echo "Ready: make test-dev; .venv-dev/bin/pre-commit install checks each commit" >&2

.venv-dev/installed: setup.py pyproject.toml
	$(ENVIRONMENT) .venv-dev --python='$(PYTHON)' --install='--editable .[dev]'

.venv-bench/installed: benchmarks/peer-requirements.txt
	$(ENVIRONMENT) .venv-bench $< --python='$(PEER_PYTHONS)'

.venv-pfl/installed: benchmarks/pfl-requirements.txt
	$(ENVIRONMENT) .venv-pfl $< --python='$(PEER_PYTHONS)'

# SmolLM2-135M from people's text, without noise and with BLT noise; goes on where it was interrupted.
# Flags and text are checked before the environment is set up.
finetune:
	@$(ANY_PYTHON) -m experiments.finetune.flags $(FINETUNE_FLAGS)
	@$(MAKE) --silent .venv-finetune/installed
	@.venv-finetune/bin/python -m experiments.finetune $(FINETUNE_FLAGS)

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
test test-fast test-dev test-thorough test-core: export PYTHONDONTWRITEBYTECODE =

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

# The parts without TensorFlow, installed anew as `pip install .` installs them; under its lock.
test-core:
	$(ENVIRONMENT) .venv-core --anew --python='$(PYTHON)' --install='.[test]' -- \
	  env OPENBLAS_NUM_THREADS=1 .venv-core/bin/pytest $(PYTEST_FLAGS) \
	  $(addprefix --ignore=,$(TFF_TESTS)) $(TESTS)

# The quick ones of these tests, in the environment of `make dev`.
test-dev: .venv-dev/installed
	OPENBLAS_NUM_THREADS=1 .venv-dev/bin/pytest $(PYTEST_FLAGS) -m 'not slow' \
	  $(addprefix --ignore=,$(TFF_TESTS)) $(TESTS)

# The adapters and their examples with the releases of examples/requirements.txt, and without
# TensorFlow. This environment takes minutes to set up, mostly for PyTorch and Ray.
test-adapters: .venv-adapters/installed
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 .venv-adapters/bin/python -m pytest \
	  --ignore=tests/run/test_equal_to_tff.py tests/adapters tests/run tests/finetune

# `.venv/bin/python -m benchmarks --help` lists the names for BENCH.
bench: env
	$(VENV)/bin/python -m benchmarks $(subst $(COMMA), ,$(BENCH)) --repeats=$(REPEATS)

clean:
	rm -rf $(VENV) $(addprefix .venv-,dev finetune core adapters docs checks pfl bench) .venv*.lock site build *.egg-info \
	  .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
