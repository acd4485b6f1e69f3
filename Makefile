# make train: set up and train on the embedded corpus, then translate. make test: set up and run the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := runs/demo
.PHONY: setup train test lint clean

setup: $(VENV)/.installed

# Installed again only when what is to be installed has changed.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

train: $(VENV)/.installed
	test -f $(RUN)/results.json || $(BIN)/python -m seq2seq.train run=$(RUN) resume=auto
	@printf '%s\n' 'Heute liest der kleine Bruder das Buch.' > /dev/null
	$(BIN)/python -m seq2seq.translate --ckpt $(RUN)/checkpoints/best.ckpt --input data/phrasebook/demo.de

test: $(VENV)/.installed
	$(BIN)/python -m pytest

lint: $(VENV)/.installed
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m pyright

clean:
	rm -rf $(VENV) build dist
