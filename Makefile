# Two commands do everything on a fresh machine: make demo, make test.
PYTHON ?= $(shell command -v python3.11 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
DEMO ?= runs/demo
WORKERS ?= 2

.PHONY: setup tasks demo test fuzz lint types studies clean

setup: $(VENV)/ready

$(VENV)/ready: constraints.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt hatchling editables
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[dev]'
	touch $@

tasks: $(VENV)/tasks

# reasoning-gym builds one C extension; where that is not possible its tests are skipped.
HEADER = $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h
$(VENV)/tasks: $(VENV)/ready
	if command -v cc >/dev/null && test -f $(HEADER); then \
		$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-build-isolation --editable '.[tasks]'; \
	else \
		echo "no C compiler or Python headers: background tasks (extra tasks) are not installed"; \
	fi
	touch $@

demo: setup
	$(BIN)/behaviortrace models pull smollm2
	$(BIN)/behaviortrace run smollm2-quick --out $(DEMO) $(if $(wildcard $(DEMO)/manifest.json),--resume)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

test: lint types tasks
	$(BIN)/behaviortrace models pull smollm2
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --cov=behaviortrace --cov-report=term --cov-fail-under=90

# The property tests on examples that no run has seen before, again and again until one fails.
fuzz: setup
	while HYPOTHESIS_PROFILE=fuzz OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) \
		$$(grep -l "from hypothesis" tests/test_*.py); do :; done

# Every table, figure and page of the committed studies, again from their rows.
studies: setup
	for sweep in studies/*/*/sweep.json; do \
		$(BIN)/behaviortrace merge "$$(dirname $$sweep)" --evaluate || exit 1; \
	done

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .coverage
