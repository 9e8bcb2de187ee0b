# `make demo` and `make test` do all of their own set-up in a fresh clone; `make help` lists the rest.
# Overrides: VENV=folder (default .venv), PYTHON=interpreter for the environment, ARGS="options".

VENV ?= .venv
ARGS ?=
export PYTHON
STAMP := $(VENV)/.installed
RUN := $(VENV)/bin/python

# The stamp holds the clone's path. A moved clone or a vanished Python makes it worthless, whatever its date.
ifneq ($(shell test -x $(RUN) && cat $(STAMP) 2>/dev/null),$(CURDIR))
.PHONY: $(STAMP)
endif

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint format study peer-tests bench bench-memory bench-training setup clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' Makefile | column -t -s '|' 2>/dev/null \
	    || sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1: \2/p' Makefile

$(STAMP): pyproject.toml constraints.txt
	@sh scripts/set_up.sh $(VENV) $@

setup: $(STAMP) ## make the virtual environment and install everything into it

demo: $(STAMP) ## reconstruct a photograph over several processes (ARGS="--help" lists the options)
	@$(VENV)/bin/shardinv demo $(ARGS)

test: $(STAMP) ## run the tests (ARGS="-k halo -x")
	@OMP_NUM_THREADS=1 $(RUN) -m pytest $(ARGS)

lint: $(STAMP) ## ruff, mypy and the import contracts
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports

format: $(STAMP) ## let ruff format and fix what it can
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

peer-tests: $(STAMP) ## run DeepInverse's own distributed tests against shardinv (about 8 minutes)
	@OMP_NUM_THREADS=1 $(RUN) tests/peer/run.py $(ARGS)

study: $(STAMP) ## measure the small study and make its report, in outputs/study_small (under 10 minutes)
	@$(VENV)/bin/shardinv study run configs/study_small.yaml $(ARGS)
	@$(VENV)/bin/shardinv study report outputs/study_small

bench: $(STAMP) ## measure shardinv beside deepinv.distributed
	@$(RUN) -m benchmarks $(ARGS)

bench-memory: $(STAMP) ## measure memory against the number of ranks
	@$(RUN) -m benchmarks.memory $(ARGS)

bench-training: $(STAMP) ## measure a training step beside deepinv.distributed
	@$(RUN) -m benchmarks.training $(ARGS)

clean: ## remove the environment and everything generated
	test ! -e $(VENV)/pyvenv.cfg || rm -rf $(VENV)
	rm -rf .venv build dist outputs .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	find src tests examples scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
