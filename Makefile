# make train: set up, train on the embedded corpus, translate three sentences.  make test: set up, run the tests.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
DEMO   := runs/demo
SENTENCES := "Deine Töchter haben am Freitag unseren Koffer neben das Sofa gestellt." \
             "Ich weiß, dass das Mädchen gestern einundzwanzig Bücher gekauft hat." \
             "Frau Schneider hat am achtzehnten Juni Geburtstag."

.PHONY: setup train test lint aot docs clean

train: setup
	test -f $(DEMO)/results.json || $(BIN)/python -m seq2seq.train run=demo resume=auto
	@printf '\n%s\n%s\n%s\n\n' $(SENTENCES)
	@printf '%s\n%s\n%s\n' $(SENTENCES) | $(BIN)/python -m seq2seq.translate --ckpt $(DEMO)/checkpoints/best.ckpt

# a process for each core; each test computes in one thread
test: setup
	$(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal

lint: setup
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m basedpyright

# The GPU kernels compiled for sm_80, sm_90 and sm_100, without a GPU; fails where registers spill.
aot: setup
	$(BIN)/python -m benchmarks.aot

# The site in site/; fails on a broken link, a missing reference, or a page that the navigation lacks.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

setup: $(VENV)/.installed

# Installed again only when what is to be installed has changed.
$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist
