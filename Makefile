# make train: set up, train on the embedded corpus, translate three sentences.  make test: set up, run the tests.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
DEMO   := runs/demo

.PHONY: setup train test lint clean

train: setup
	test -f $(DEMO)/results.json || $(BIN)/python -m seq2seq.train run=demo resume=auto
	head -n 3 data/phrasebook/demo.de | tee /dev/stderr | $(BIN)/python -m seq2seq.translate --ckpt $(DEMO)/checkpoints/best.ckpt

test: setup
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m basedpyright

setup: $(VENV)/.installed

# Installed again only when what is to be installed has changed.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist
