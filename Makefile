# Every target sets up what it needs: a virtual environment with the versions in constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: test demo lint clean

$(STAMP): pyproject.toml constraints.txt $(wildcard setup.py)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $@

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n 2 -m 'not slow'

demo: $(STAMP)
	$(BIN)/python -m mnemoscope.demo

clean:
	rm -rf $(VENV) build *.egg-info src/*.egg-info
