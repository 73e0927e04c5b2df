# `make demo` and `make test` work from a fresh clone: each sets up its own virtual environment first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help install demo test lint types docs clean
.DEFAULT_GOAL := help

help:  ## list the commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cli,dev,docs]'
	@touch $(STAMP)

install: $(STAMP)  ## create the virtual environment with exact versions

demo: install  ## train a real model with several optimizers; shows a table, writes a picture
	$(BIN)/steepest compare digits --out demo

lint: install  ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install  ## mypy --strict on src
	$(BIN)/mypy

test: lint types docs  ## everything: lint, types, docs, tests, doctests, examples
	$(BIN)/pytest

docs: install  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:  ## remove what the other commands made
	rm -rf $(VENV) site demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
