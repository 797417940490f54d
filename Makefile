# Penstock. `make help` lists the targets; `make test` is what continuous integration runs.

SHELL := /bin/bash
.DEFAULT_GOAL := help
# The targets follow one another; pytest spreads itself over the cores.
.NOTPARALLEL:

VENV := .venv
PYTHON := $(VENV)/bin/python
# Each is newer than pyproject.toml when the environment has those extras: what serving needs, what
# the tests need, and what only benchmarks need.
SERVER_INSTALLED := $(VENV)/.installed-server
INSTALLED := $(VENV)/.installed
BENCH_INSTALLED := $(VENV)/.installed-bench
# The same for the clients of SQS that need an environment of their own.
CLIENTS_INSTALLED := $(VENV)/.installed-sqs-clients
# The same for Airflow.
AIRFLOW_INSTALLED := $(VENV)/.installed-airflow
# The interpreter that .venv is made with, if not the first suitable one on the PATH.
PYTHON3 ?=
# The interpreters for `make pythons`, if not those on the PATH and of pyenv.
PYTHONS ?=
# What Spark runs on.
JAVA := openjdk-17-jre-headless:java
# What the tests need from the system, as PACKAGE or PACKAGE:BINARY (Debian's names).
SYSTEM_PACKAGES := python3-venv curl wrk redis-server postgresql:postgres mariadb-server:mariadbd \
    systemd:systemd-analyze prometheus:promtool chromium $(JAVA) nodejs:node npm
# More peers that benchmarks compare with.
BENCH_PACKAGES := $(SYSTEM_PACKAGES) rabbitmq-server beanstalkd
# Parallel test processes. For two cores two more are worth it: many tests wait for a server or for Java.
WORKERS ?= 4
CORES := $(shell nproc)
# More options for pytest: make test PYTEST='-k claim -x'
PYTEST ?=
CODE := $(wildcard src tests bench examples website deploy/health.py)
# Every test process rewrites the asserts of all tests, 9 s of work, unless pytest may keep the result.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run demo test quick pythons laws rewritten check proto bench figures screenshot docs format clean system java

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(SERVER_INSTALLED) ## Serve on an embedded store in ./data, and say what to do next
	$(VENV)/bin/penstock serve --store rocksdb:data/penstock

demo: java $(INSTALLED) ## 50,000 messages, five queues, failing workers, a replay, Spark; then the console
	$(PYTHON) examples/demo.py --console

test: system $(CLIENTS_INSTALLED) $(AIRFLOW_INSTALLED) ## Check, then run the whole test suite
	$(MAKE) -j2 --output-sync check rewritten
	$(PYTHON) -m tests.whole_suite -n $(WORKERS) --dist worksteal --durations=15 $(PYTEST)

quick: $(INSTALLED) ## The tests that need no server, database or Java: about a minute
	$(PYTHON) -m pytest -n $(CORES) --dist worksteal -q -m 'not slow and not processes' \
	    tests/unit tests/conformance/test_memory.py $(PYTEST)

pythons: system $(INSTALLED) ## The quick tests from the wheel, on each Python that is found: minutes for each
	$(PYTHON) -m tests.pythons $(PYTHONS)

laws: $(INSTALLED) ## Rewrite the table in docs/semantics.md of the tests that hold each law
	$(PYTHON) -m tests.law_report

rewritten: $(INSTALLED) # Rewrite the asserts of all tests once, not once in every test process
	-$(PYTHON) -m pytest --collect-only -qq > /dev/null

check: $(INSTALLED) ## Lint, format, types, who imports whom
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy $(CODE)
	$(VENV)/bin/lint-imports --no-logo

proto: $(INSTALLED) ## Generate the module of queue-ti's protocol, with the oldest compiler that serves
	$(PYTHON) -m venv build/protoc && build/protoc/bin/pip install --quiet 'grpcio-tools==1.72.*'
	cd src/penstock/server/doors/queue_ti/proto && \
	    $(CURDIR)/build/protoc/bin/python -m grpc_tools.protoc -I. --descriptor_set_out=queue.binpb --pyi_out=. queue.proto

bench: $(BENCH_INSTALLED) ## Measure everything, and Redis, RabbitMQ, PGMQ, beanstalkd and Celery on the same work
	@PYTHON=$(PYTHON3) scripts/system-packages $(BENCH_PACKAGES)
	$(PYTHON) -m bench

figures: $(INSTALLED) ## Rewrite the tables in README.md and docs/performance.md from the newest results
	$(PYTHON) -m bench.performance_page

docs: $(INSTALLED) ## Build the documentation site into build/site
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build

screenshot: system $(INSTALLED) ## Rewrite the picture of the console in README.md, in three minutes
	$(PYTHON) -m tests.console.screenshot

format: $(INSTALLED) ## Format the code and sort its imports
	$(VENV)/bin/ruff check --fix-only .
	$(VENV)/bin/ruff format .

clean: ## Remove the environment, builds and caches
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

system: # Install missing system packages
	@PYTHON=$(PYTHON3) scripts/system-packages $(SYSTEM_PACKAGES)

java: # Install Java, if there is none
	@PYTHON=$(PYTHON3) scripts/system-packages $(JAVA)

$(SERVER_INSTALLED): pyproject.toml scripts/virtualenv
	PYTHON=$(PYTHON3) scripts/virtualenv server,rocksdb
	@touch $@

$(INSTALLED): pyproject.toml scripts/virtualenv
	PYTHON=$(PYTHON3) scripts/virtualenv dev
	@touch $@ $(SERVER_INSTALLED)

$(BENCH_INSTALLED): pyproject.toml scripts/virtualenv
	PYTHON=$(PYTHON3) scripts/virtualenv dev,bench
	@touch $@ $(INSTALLED) $(SERVER_INSTALLED)

$(CLIENTS_INSTALLED): $(INSTALLED) scripts/sqs-clients tests/doors/sqs/requirements-query.txt \
    tests/doors/sqs/javascript/package-lock.json
	scripts/sqs-clients
	@touch $@

$(AIRFLOW_INSTALLED): $(INSTALLED) scripts/airflow-environment tests/integrations/requirements-airflow.txt
	scripts/airflow-environment
	@touch $@
