# make run     cook the packaged photograph, train, draw res/out.png (ARGS go to `convtrain run`)
# make test    the test suite
# make lint    ruff and mypy
# make bench   compare with PyTorch on this machine
# make agree   compare every plan that this device gets with scalar fp32
# make clean   remove everything that cook, run and the tools wrote (not .venv)
#
# Each target first makes the machine ready: see scripts/setup.sh. Nothing is installed again when nothing changed.

SETUP := pyproject.toml scripts/setup.sh
PYTHON := .venv/bin/python

.PHONY: run test lint bench agree clean

run: .venv/.ready-run
	@scripts/demo.sh $(ARGS)

test: .venv/.ready-test
	@$(PYTHON) -m pytest $(ARGS)

lint: .venv/.ready-test
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy

bench: .venv/.ready-bench
	@$(PYTHON) -m bench $(ARGS)

agree: .venv/.ready-run
	@$(PYTHON) -m bench.agreement $(ARGS)

clean:
	@find res res_train -mindepth 1 ! -name README.md -delete
	@rm -rf build dist bench/results .pytest_cache .mypy_cache .ruff_cache
	@find convtrain cook tests bench -name __pycache__ -prune -exec rm -rf {} +

.venv/.ready-run: $(SETUP)
	@scripts/setup.sh run

.venv/.ready-test: $(SETUP)
	@scripts/setup.sh test

.venv/.ready-bench: $(SETUP)
	@scripts/setup.sh bench
