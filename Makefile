# Everything works on a fresh machine with Python 3.11 or newer: the environment is made on first use.
PYTHON ?= python3
VENV   := .venv
SEEDS  ?= 1000
MINUTES ?= 10
ROUNDS ?= 3
BIN    := $(VENV)/bin
RIVALS := build/rivals
PYTHONS := python3.11 python3.12 python3.13 python3.14
# Only errors are worth reading; what is installed is pinned in pyproject.toml.
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test test-all-pythons long check format simulate chaos failover bench screenshots clean

demo: $(VENV)/.base  ## fifteen seconds that show what it does
	$(BIN)/synergon demo

test: $(VENV)/.test  ## all tests
	$(BIN)/python -m pytest -n auto --dist worksteal $(PYTEST_ARGS)

test-all-pythons:  ## all tests on every Python from 3.11 to 3.14 that is on the path, each in build/python3.*
	@passed= failed= missing= unusable=; for python in $(PYTHONS); do \
		if ! command -v $$python >/dev/null || ! $$python -c "" 2>/dev/null; then missing="$$missing $$python"; \
		elif ! $$python -c "import ensurepip, venv" 2>/dev/null; then unusable="$$unusable $$python"; \
		elif $(MAKE) test PYTHON=$$python VENV=build/$$python; then passed="$$passed $$python"; \
		else failed="$$failed $$python"; fi; \
	done; \
	echo "passed:$${passed:- none}; failed:$${failed:- none}; not found:$${missing:- none}"; \
	test -z "$$unusable" || echo "not tested for want of ensurepip, without which there is no venv:$$unusable"; \
	test -n "$$passed" && test -z "$$failed"

long: $(VENV)/.test  ## the long forms of those tests that have one: a quarter of an hour
	SYNERGON_LONG=1 $(BIN)/python -m pytest -n logical --timeout 600 $(PYTEST_ARGS) $$(grep -rlE "IS_LONG_RUN|SYNERGON_LONG" --include="test_*.py" tests)

check: $(VENV)/.check  ## format, lint, layers and types, without changing anything
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/mypy
	$(BIN)/python -m tools.type_completeness

format: $(VENV)/.check  ## format, and mend what can be mended
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

simulate: $(VENV)/.test  ## worlds full of faults: SEEDS=10000, or SEED=7 for everything that happened in one
	$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

chaos: $(VENV)/.test  ## real processes on real databases, hurt at random: MINUTES=10, SEED=7, STORE=postgres or sqlite
	$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(STORE),--store $(STORE))

failover: $(VENV)/.test  ## the PostgreSQL primary is lost under load: ROUNDS=3, SEED=7, FORM=direct or pgbouncer, LOSS=stop or silence
	$(BIN)/python -m tests.chaos.failover --rounds $(ROUNDS) $(if $(SEED),--seed $(SEED)) $(if $(FORM),--form $(FORM)) $(if $(LOSS),--loss $(LOSS))

bench: $(VENV)/.bench $(RIVALS)/.installed  ## the figures, beside others: ONLY="postgres pgqueuer" for some of them
	$(BIN)/python -m benchmarks $(if $(ONLY),--only $(ONLY)) $(BENCH_ARGS)

screenshots: $(VENV)/.test  ## pictures of all pages of the dashboard, both themes, wide and narrow, in build/screenshots; needs a Chromium
	$(BIN)/python -m tests.web.screenshots

.PHONY: measure
measure: $(VENV)/.base  ## how much code a reader meets: counts, no times; WALK=1 lists the functions of a plain task
	$(BIN)/python -m tools.measure $(if $(WALK),--walk)

.PHONY: site
site: build/site/.installed  ## the documentation as a site, in build/site-html
	build/site/bin/python -m tools.site_pages
	NO_MKDOCS_2_WARNING=1 build/site/bin/mkdocs build --quiet --strict
	@echo "the site is in build/site-html; with search: build/site/bin/python -m http.server --directory build/site-html"

clean:
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/.base: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "synergon needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade "pip>=25.1"
	$(PIP) --editable .
	touch $@

$(VENV)/.test: $(VENV)/.base
	$(PIP) --group test
	touch $@

$(VENV)/.check: $(VENV)/.test
	$(PIP) --group check
	touch $@

$(VENV)/.bench: $(VENV)/.base
	$(PIP) --group bench
	touch $@

# One of the others needs Python 3.12: the newest interpreter that there is gets them, and without such a one it stays out.
$(RIVALS)/.installed: pyproject.toml
	newest=$$($(PYTHON) benchmarks/newest_python.py) && $$newest -m venv --clear $(RIVALS)
	$(RIVALS)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	$(RIVALS)/bin/python -m pip install --quiet --disable-pip-version-check --group rivals
	touch $@

build/site/.installed: pyproject.toml
	test -x build/site/bin/python || $(PYTHON) -m venv build/site
	build/site/bin/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	build/site/bin/python -m pip install --quiet --disable-pip-version-check --editable . --group site
	touch $@
