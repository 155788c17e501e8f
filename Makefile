# Every target sets up what it needs: a virtual environment with the versions in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: test test-faults demo lint clean

$(STAMP): pyproject.toml constraints.txt setup.py $(wildcard src/mnemoscope/kernels/cpu/*.cpp src/mnemoscope/kernels/cpu/*.h)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 -m 'not slow'  # two processes, a thread each: more only wait for each other

# Training processes killed by SIGKILL at fifty moments, in the middle of a write included.
test-faults: $(STAMP)
	MNEMOSCOPE_KILLS=50 $(BIN)/pytest tests/training/test_kills.py

demo: $(STAMP)
	$(BIN)/python -m mnemoscope.demo

clean:
	rm -rf $(VENV) build *.egg-info src/*.egg-info
