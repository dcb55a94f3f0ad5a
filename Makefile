# Two commands do everything on a fresh machine: `make demo` and `make test`.
VENV ?= .venv
PY := $(VENV)/bin/python
# The first Python that is new enough and not too new.
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.13; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$p && break; done)
SETUP := pyproject.toml constraints.txt scripts/setup.py

EXAMPLE ?= examples/layer_norm_residual.py
RESULT := $(notdir $(EXAMPLE:.py=_new.py))

.PHONY: demo test check lint types layers lines unit golden clean

demo: $(VENV)/.core  ## optimise one example and show what came out
	$(PY) -m mtmc optimize $(EXAMPLE) -o $(RESULT)
	@echo; echo "--- $(RESULT): one plain file, no import of mtmc ---"; echo
	@cat $(RESULT)

test: check unit  ## all checks and tests; no GPU needed

check: lint types layers lines

lint: $(VENV)/.dev
	$(PY) -m ruff check --quiet .
	$(PY) -m ruff format --check --quiet .

types: $(VENV)/.dev
	$(PY) -m mypy

layers: $(VENV)/.dev
	$(VENV)/bin/lint-imports --no-cache

lines: $(VENV)/.dev
	$(PY) scripts/line_budget.py

unit: $(VENV)/.dev
	$(PY) -m pytest -q

golden: $(VENV)/.dev  ## rewrite the golden files after a wanted change; read the diff before you commit it
	$(PY) -m pytest -q --update-golden

$(VENV)/.core: $(SETUP)
	@test -n "$(PYTHON)" || { echo "mtmc needs Python 3.11, 3.12 or 3.13: set PYTHON=/path/to/python"; exit 3; }
	@$(PYTHON) scripts/setup.py $(VENV)
	@touch $@

$(VENV)/.dev: $(SETUP)
	@test -n "$(PYTHON)" || { echo "mtmc needs Python 3.11, 3.12 or 3.13: set PYTHON=/path/to/python"; exit 3; }
	@$(PYTHON) scripts/setup.py $(VENV) --extras dev,report
	@touch $@ $(VENV)/.core

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
