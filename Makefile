PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt
DEMO   := runs/demo
SENTENCES := "Deine Töchter haben am Freitag unseren Koffer neben das Sofa gestellt." \
             "Ich weiß, dass das Mädchen gestern einundzwanzig Bücher gekauft hat." \
             "Frau Schneider hat am achtzehnten Juni Geburtstag."

# a process for each core; each test computes in one thread
PYTEST := $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist worksteal
# Tests are kept compiled, whatever the environment says; otherwise each process compiles all of them again
export PYTHONDONTWRITEBYTECODE :=
ROUNDS ?= 20

# Triton as torch 2.11 brings it: GPU machines may compile the kernels with another version than the environment's
OTHER_TRITON ?= 3.6.0
OTHER := .cache/triton-$(OTHER_TRITON)
COUNTS := benchmarks/results/aot

.PHONY: setup train test test-all rest floors fuzz lint aot aot-all docs clean

# Train on the embedded corpus, from where an earlier run ended, and translate three sentences.
train: setup
	$(BIN)/python -m seq2seq.train run=demo resume=auto
	@printf '\n%s\n%s\n%s\n\n' $(SENTENCES)
	@printf '%s\n%s\n%s\n' $(SENTENCES) | $(BIN)/python -m seq2seq.translate --ckpt $(DEMO)

# The tests, in a few minutes on two cores.
test: setup
	$(PYTEST)

# Every test that needs no GPU and no cluster.
test-all: setup
	$(PYTEST) -m "not gpu and not slurm"

# The tests of test-all that test leaves out.
rest: setup
	$(PYTEST) -m "(exhaustive or slow) and not gpu and not slurm"

# The tests with the oldest versions that pyproject.toml allows, in a folder before the environment's own.
floors: setup
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target .cache/floors -r constraints-oldest.txt
	PYTHONPATH=.cache/floors $(PYTEST)

# ROUNDS times other random numbers for the tests that draw some; prints each failure and how to repeat it.
fuzz: setup
	$(BIN)/python tests/fuzz.py --rounds $(ROUNDS)

# Style and types, and a report of lengths.
lint: setup
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m basedpyright
	$(BIN)/python tests/lengths.py

# The GPU kernels compiled by two versions of Triton, without a GPU; fails where registers spill, and counts instructions.
aot: setup $(if $(OTHER_TRITON),$(OTHER)/.installed)
	$(BIN)/python -m benchmarks.aot --gate
	$(if $(OTHER_TRITON),PYTHONPATH=$(OTHER) $(BIN)/python -m benchmarks.aot --gate --arch 90)
	$(BIN)/python -m benchmarks.roofline --out $(COUNTS) > /dev/null
	$(if $(OTHER_TRITON),PYTHONPATH=$(OTHER) $(BIN)/python -m benchmarks.roofline --out $(COUNTS))

# The same for every type and size on sm_80, sm_90 and sm_100: about half an hour.
aot-all: setup $(if $(OTHER_TRITON),$(OTHER)/.installed)
	$(BIN)/python -m benchmarks.aot
	$(if $(OTHER_TRITON),PYTHONPATH=$(OTHER) $(BIN)/python -m benchmarks.aot --arch 90)

# Another Triton, in a folder of its own: it goes before the environment's on PYTHONPATH.
$(OTHER)/.installed:
	rm -rf $(OTHER)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(OTHER) triton==$(OTHER_TRITON) \
		|| { echo "triton $(OTHER_TRITON) cannot be installed: the kernels are not checked with it." \
			"To check them with the environment's own alone: make aot OTHER_TRITON=" >&2; exit 1; }
	touch $@

# The site in site/; fails on a broken link, a missing reference, or a page that the navigation lacks.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The virtual environment .venv, installed again only when what is to be installed has changed.
setup: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing torch and the rest into $(VENV): about 3.5 GB, and more with CUDA, which takes some minutes"
	$(PIP) torch
	$(PIP) -e '.[dev]'
	touch $@

# Remove what setup, docs and builds have made; runs and caches stay.
clean:
	rm -rf $(VENV) build dist site
