# `make demo` and `make test` do all their own set-up: Python 3.11+, make and a package index are enough.
PYTHON ?= python3
VENV ?= .venv
PIP = $(VENV)/bin/pip --disable-pip-version-check
CONSTRAINTS = -c constraints.txt
# Bytecode is made once everything is there, on all cores: pip uses one, and takes as long for it as for all the rest.
INSTALL = $(PIP) install -q --no-compile $(CONSTRAINTS)
COMPILE = @$(VENV)/bin/python -m compileall -qq -j 0 $(VENV)/lib || true

# Bytecode that is not written is made again by every process: tests, whose assertions are rewritten, and their commands.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test slow coverage others lint types bench docs site experiments reproductions clean

demo: $(VENV)/.core
	$(VENV)/bin/penstock run configs/quickstart.yaml

# No test needs several threads for its arithmetic: each has a processor, or shares it.
PYTEST = pytest -n auto --dist worksteal
PARALLEL = OMP_NUM_THREADS=1 $(VENV)/bin/python -m $(PYTEST)

test: $(VENV)/.test
	$(PARALLEL) -m "not slow and not integration"

# Brute force at larger sizes, many random chains, many kills: minutes to an hour.
slow: $(VENV)/.test
	$(PARALLEL) -m "slow and not integration" tests

# The tests of three packages, and the share of the packages' lines that these run; and the tests that are left.
# Instrumented, they take a twentieth longer (196 s of processor time, 205); traced, accountants took half as long again.
COVERED = mechanisms accountants evaluation
comma = ,
TESTS_OF_COVERED = $(COVERED:%=tests/%) $(COVERED:%=penstock/%)
coverage: $(VENV)/.test
	@mkdir -p build && rm -f build/coverage.txt
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m slipcover --source $(subst $() ,$(comma),$(COVERED)) --skip-covered \
		--out build/coverage.txt -m $(PYTEST) -m "not slow and not integration" $(TESTS_OF_COVERED)
	@awk 'END {if (!$$4) exit 1; print "$(COVERED): their tests run " $$4 " % of " $$2 " lines, all but " $$3}' build/coverage.txt

others: $(VENV)/.test
	$(PARALLEL) -m "not slow and not integration" $(TESTS_OF_COVERED:%=--ignore=%)

lint: $(VENV)/.dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.dev
	$(VENV)/bin/mypy penstock reproductions benchmarks --exclude reproductions/tests

# The other engines have an environment of their own, so that penstock is measured as it is installed.
bench: $(VENV)/.plot $(VENV)-peers/.bench
	PENSTOCK_PEERS=$(VENV)-peers/bin/python $(VENV)/bin/python -m benchmarks

docs: $(VENV)/.core
	$(VENV)/bin/python docs/generate.py
	$(VENV)/bin/python -m reproductions --page

# In build/site. A link or an anchor that leads nowhere, or a page that the menu lacks, is a failure.
site: $(VENV)/.docs
	$(VENV)/bin/mkdocs build --strict

# Every question of configs/experiments/ at its reduced size.
experiments: $(VENV)/.plot
	$(VENV)/bin/python -m reproductions configs/experiments/*.yaml --reduced --out runs/experiments/reduced

# What repeats the papers: its tests, and every figure and table at its reduced size.
reproductions: $(VENV)/.test
	$(PARALLEL) -m "not slow and not data" reproductions
	$(VENV)/bin/python -m reproductions --page --check
	$(VENV)/bin/python -m reproductions --reduced --out runs/reproductions/reduced

clean:
	rm -rf $(VENV) $(VENV)-peers build *.egg-info

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "penstock needs Python 3.11 or later: make PYTHON=python3.11 …"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e .
	$(COMPILE)
	@touch $@

$(VENV)/.test: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[test]'
	$(COMPILE)
	@touch $@ $(VENV)/.core

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[dev]'
	$(COMPILE)
	@touch $@ $(VENV)/.core

# Every extra but the other engines: one call of pip takes less time than one for each.
$(VENV)/.all: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[browser,dev,docs,kafka,notebooks,plot,test]'
	$(COMPILE)
	@touch $@ $(VENV)/.core $(VENV)/.test $(VENV)/.dev $(VENV)/.docs $(VENV)/.plot

$(VENV)-peers/.bench: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)-peers
	$(VENV)-peers/bin/pip --disable-pip-version-check install -q $(CONSTRAINTS) '.[bench]'
	@touch $@

$(VENV)/.plot: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[attacks,plot]'
	$(COMPILE)
	@touch $@ $(VENV)/.core

$(VENV)/.docs: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(INSTALL) -e '.[docs]'
	$(COMPILE)
	@touch $@ $(VENV)/.core
