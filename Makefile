# `make demo` and `make test` are all a fresh machine needs.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-fast fuzz kill bench lint docs clean

$(BIN)/python:
	$(PYTHON) -m venv .venv

.venv/installed: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv/installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[test]'
	touch .venv/installed $@

.venv/installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[docs]'
	touch .venv/installed $@

demo: .venv/installed
	$(BIN)/pidformer demo --out demo

lint: .venv/installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	$(BIN)/pytest -n 2 --dist worksteal

test-fast: .venv/installed-test
	$(BIN)/pytest -n 2 --dist worksteal -m 'not slow'

fuzz: .venv/installed-test
	$(BIN)/python -m tests.fuzz

kill: .venv/installed-test
	$(BIN)/python -m tests.kills
	$(BIN)/python -m tests.lab.load

docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

bench: .venv/installed-test
	$(BIN)/python -m benchmarks goals
	$(BIN)/python -m benchmarks growth

clean:
	rm -rf .venv build dist site
