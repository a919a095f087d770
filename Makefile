# Every developer command, each one line long. `make demo` and `make test` need only Python 3.11, pip and make.
PYTHON ?= python3
VENV   ?= .venv
FLOWER ?= .flower
TOOLS  ?= .tools
BIN     = $(VENV)/bin
VERSION = $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' src/conformesh/__init__.py)
CODE    = src tests benchmarks docs examples tools
JOBS   ?= 2
CORES   = $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
WORKERS ?= $(shell expr $(CORES) + 1)  # of the tests, some of which wait for something
SAMPLE ?= 300
unexport PYTHONDONTWRITEBYTECODE  # the tests start many commands, each of which would compile the package again

.PHONY: help demo test test-all examples mutants lint types bench results docs fix page smoke oldest release lock locked clean
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

# Flower asks for older versions of what the command line is made of, so that it has a place of its own
$(FLOWER)/.ready: pyproject.toml
	$(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[flower,mesh]' 'pytest>=8.3,<9.2' hypothesis
	@touch $@

# What checks examples for operators: tests that find it on the path use it, and say so where they do not
$(TOOLS)/.ready:
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check ansible-core ansible-lint kubernetes-validate
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
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "not meshes"
	$(BIN)/python -m pytest -m meshes
	$(MAKE) examples

examples: $(FLOWER)/.ready $(VENV)/.torch  ## the examples with Flower and PyTorch, each where its library is
	$(FLOWER)/bin/python -m pytest -p no:cacheprovider tests/examples/test_flower.py
	$(BIN)/python -m pytest tests/examples/test_pytorch.py

lint: $(VENV)/.test  ## ruff: rules and formatting
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

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

docs: $(VENV)/.docs  ## the documentation site, strict, in site/VERSION/, beside those of other releases
	$(BIN)/python docs/versions.py

fix: $(VENV)/.test  ## format, sort imports, regenerate the generated docs pages
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)
	$(BIN)/python docs/generate.py

$(VENV)/.release: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[release]'
	@touch $@

page:  ## the libraries of the page, from the npm registry: rewrites vendor.* in src/conformesh/view/page; needs Node and npm
	cd tools/page && npm ci --ignore-scripts && node build.mjs

smoke: $(VENV)/.release  ## the built wheel with runtime dependencies only: make smoke PYTHON=python3.13
	rm -rf dist .smoke && $(BIN)/python -m build --wheel --outdir dist .
	$(PYTHON) -m venv .smoke && .smoke/bin/python -m pip install --quiet --disable-pip-version-check dist/*.whl
	.smoke/bin/python tools/smoke.py

oldest: $(VENV)/.release  ## the same with the oldest dependencies that pyproject.toml allows
	rm -rf .smoke && $(BIN)/uv venv --quiet --python $(PYTHON) .smoke
	$(BIN)/uv pip install --quiet --python .smoke --resolution lowest-direct .
	.smoke/bin/python tools/smoke.py

release: smoke  ## wheel and sdist, checked, and what the wheel brings along as CycloneDX: all in dist/
	$(BIN)/python -m build --sdist --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tools/bill.py .smoke dist/conformesh-$(VERSION).cdx.json

lock: $(VENV)/.release  ## pins what developers install, with hashes: rewrites requirements/dev.lock
	$(BIN)/uv pip compile pyproject.toml --extra test --extra docs --extra release --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-header --quiet --upgrade --output-file requirements/dev.lock

locked:  ## a developers' environment of exactly these versions, in $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(VENV)/.runtime $(VENV)/.test $(VENV)/.docs $(VENV)/.release

clean:  ## remove what these commands made
	rm -rf $(VENV) $(FLOWER) $(TOOLS) mutants .smoke dist build site tools/page/node_modules conformesh-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
