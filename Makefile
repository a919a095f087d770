# Every developer command, each one line long. `make demo` and `make test` need only Python 3.11, pip and make.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
JOBS   ?= 2
WORKERS ?= 3  # of the tests, many of which wait for something
SAMPLE ?= 300
unexport PYTHONDONTWRITEBYTECODE  # the tests start many commands, each of which would compile the package again

.PHONY: help demo test test-all mutants lint types bench results docs fix smoke clean
help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

$(VENV)/.runtime: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	@touch $@

$(VENV)/.torch: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,torch]'
	@touch $@

# TorchCP and puncc come without their dependencies: torchsort needs a compiler, and puncc asks for NumPy below 2
$(VENV)/.bench: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,bench]'
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps torchcp puncc
	@touch $@

$(VENV)/.docs: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

demo: $(VENV)/.runtime  ## the main job, from nothing: every method on real images, a table and two pictures
	$(BIN)/conformesh demo

test: lint types  ## tests, lint and types: what CI runs
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not slow"

test-all: lint types $(VENV)/.torch  ## adds the long statistical runs, the whole reproduction in brief, and training
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

lint: $(VENV)/.test  ## ruff: rules and formatting
	$(BIN)/ruff check src tests benchmarks docs
	$(BIN)/ruff format --check src tests benchmarks docs

types: $(VENV)/.test  ## mypy, strict
	$(BIN)/mypy

$(VENV)/.mutants: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'mutmut==3.8.0'
	@touch $@

mutants: $(VENV)/.mutants  ## small changes of the code that a test must notice: a sample, or all with SAMPLE=0
	$(BIN)/python tests/mutants.py --sample $(SAMPLE) --jobs $(JOBS)

bench: $(VENV)/.bench  ## ratios in one run beside other libraries; rewrites tables and pictures of benchmarks/README.md
	$(BIN)/python benchmarks/run.py

results: $(VENV)/.runtime  ## the published figures again: make results DATA=folder-with-model-outputs; rewrites results/
	$(BIN)/conformesh reproduce all --data $(DATA) --out results --jobs $(JOBS)

docs: $(VENV)/.docs  ## the documentation site, strict, in site/
	$(BIN)/mkdocs build --strict

fix: $(VENV)/.test  ## format, sort imports, regenerate the generated docs pages
	$(BIN)/ruff check --fix src tests benchmarks docs
	$(BIN)/ruff format src tests benchmarks docs
	$(BIN)/python docs/generate.py

smoke: $(VENV)/.test  ## the built wheel with runtime dependencies only
	$(BIN)/python -m pip install --quiet build && $(BIN)/python -m build --wheel --outdir dist .
	rm -rf .smoke && $(PYTHON) -m venv .smoke && .smoke/bin/pip install --quiet dist/*.whl
	.smoke/bin/conformesh --help && .smoke/bin/python -c "import conformesh; print(conformesh.__version__)"

clean:  ## remove what these commands made
	rm -rf $(VENV) mutants .smoke dist build site conformesh-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
