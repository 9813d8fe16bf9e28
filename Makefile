# Each target does its own set-up, so on a fresh clone any of them can be run first.
VENV   := .venv
PYTHON := $(VENV)/bin/python
READY  := $(VENV)/.ready
TOGETHER := --numprocesses 2 --dist worksteal
LOWEST := .venv-lowest
STAGES := thorough connect cluster alone alone-connect
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export PYSPARK_PYTHON := $(CURDIR)/$(PYTHON)
export SPARK_LOCAL_IP ?= 127.0.0.1

.PHONY: setup demo test test-all tests rest $(STAGES) test-lowest checks coverage mutants lint format bench java browser clean

setup: java $(READY)

$(READY): setup.cfg constraints.txt
	python3 -m venv $(VENV)
	$(PYTHON) -m pip install --quiet --upgrade pip
	$(PYTHON) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(READY)

java:
	@bash tools/java.sh

# One test looks at a report with it.
browser:
	@bash tools/chromium.sh

demo: setup
	spark-submit --master 'local[2]' --driver-memory 3g --conf spark.log.level=ERROR \
		--conf spark.ui.enabled=false --conf spark.ui.showConsoleProgress=false jobs/demo.py

lint: setup
	ruff check .
	ruff format --check .
	mypy

# What every change must pass: minutes.
test: lint browser tests

# The same and the rest: Spark Connect, a standalone cluster, S3, all notebooks, every fault.
test-all: test rest

# `make -k test-all` runs them all, whatever fails.
rest: $(STAGES)

tests $(STAGES): export RUN ?= $(PYTHON)

tests: setup
	$(RUN) -m pytest $(TOGETHER) -m 'not thorough and not alone'

thorough: setup
	$(RUN) -m pytest $(TOGETHER) -m 'thorough and not alone'

connect: setup
	$(RUN) -m pytest $(TOGETHER) -m 'not alone' --session connect tests/spark

cluster: setup
	$(RUN) -m pytest --session cluster tests/spark

alone: setup
	$(RUN) -m pytest -m alone

alone-connect: setup
	$(RUN) -m pytest -m alone --session connect tests/spark/test_connect.py

checks: setup
	$(PYTHON) -m pip install --quiet --constraint constraints.txt --editable '.[dev,checks]'

# All tests again, in every process that they start.
coverage: export COVERAGE_FILE := $(CURDIR)/.coverage
coverage: export SPARK_CONF_DIR := $(CURDIR)/tests/covered
coverage: export PYTHONPATH := $(CURDIR)
coverage: checks
	coverage erase
	$(MAKE) tests rest RUN='coverage run'
	coverage combine --quiet
	@rm -f .coverage.*  # Of processes that were killed while they saved theirs.
	coverage report --skip-covered --show-missing
	coverage json --quiet -o .coverage-report.json
	@$(PYTHON) -c 'import json, sys; found = json.load(open(".coverage-report.json"))["totals"]; \
		share = found["covered_branches"] / found["num_branches"]; print(f"{share:.1%} of branches"); sys.exit(share < 0.92)'

mutants: checks
	$(PYTHON) tools/mutants.py

# The lowest versions that setup.cfg allows; this torch brings 3 GB of CUDA on Linux.
$(LOWEST)/.ready: setup.cfg constraints-lowest.txt
	python3 -m venv $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --upgrade pip
	$(LOWEST)/bin/python -m pip install --quiet --constraint constraints-lowest.txt --editable '.[dev]'
	@touch $@

test-lowest: export PATH := $(abspath $(LOWEST))/bin:$(PATH)
test-lowest: export PYSPARK_PYTHON := $(abspath $(LOWEST))/bin/python
test-lowest: java $(LOWEST)/.ready
	$(LOWEST)/bin/python -m pytest $(TOGETHER) -m 'not alone' tests/spark tests/core
	$(LOWEST)/bin/python -m pytest -m alone tests/spark

format: setup
	ruff check --fix .
	ruff format .

bench: setup
	$(PYTHON) -m pip install --quiet --constraint constraints.txt --editable '.[dev,bench]'
	$(PYTHON) benchmarks/run.py $(if $(LARGE),--large)
	$(PYTHON) benchmarks/binned.py $(if $(LARGE),--rows 1000000000 --no-sort)
	$(PYTHON) benchmarks/workers.py $(if $(DATA_DIR),--data-dir $(DATA_DIR))
	$(if $(DATA_DIR),$(PYTHON) benchmarks/sparse.py --data-dir $(DATA_DIR) $(if $(LARGE),--large))
	$(if $(DATA_DIR),$(PYTHON) -m pip install --quiet --no-deps libauc==2.0.1)
	$(if $(DATA_DIR),$(PYTHON) benchmarks/rivals.py --data-dir $(DATA_DIR))
	$(if $(DATA_DIR),$(PYTHON) benchmarks/audit.py --data-dir $(DATA_DIR))
	$(if $(DATA_DIR),$(PYTHON) benchmarks/defaults.py --data-dir $(DATA_DIR))
	$(if $(DATA_DIR),$(PYTHON) benchmarks/few_rows.py --data-dir $(DATA_DIR))
	$(if $(TABLES),$(PYTHON) -m benchmarks.tables --tables $(TABLES))

clean:
	rm -rf $(VENV) $(LOWEST) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
