# Two commands matter: `make demo` runs an evaluation, `make test` runs every test.
# Environments are made in .venv/ as needed, with the newest Python found: see tools/.

core = tools/environment core newest constraints/core.txt -e '.[eval,parquet]' --group dev
floor = tools/environment floor oldest constraints/floor.txt -e '.[eval,parquet]' --group test
demo = tools/environment demo newest constraints/core.txt -e '.[eval]'

# Every branch of these is tested: `make test` fails where one is not.
covered = osmosis_ai/*.py,osmosis_ai/rollout/**,osmosis_ai/eval/**

compile = bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
	--no-annotate --no-header --extra eval --extra parquet pyproject.toml

.PHONY: demo gsm8k test test-floor check upgrade changelog build clean

demo: ## run the multiply evaluation end to end
	@env=$$($(demo)) && $$env/bin/osmosis eval run examples/multiply/configs/eval/multiply.toml

gsm8k: ## replay the recorded GSM8K completions: one line a model, NAME PASSED/TOTAL
	@env=$$($(demo)) && $$env/bin/python examples/gsm8k/run.py

test: ## every test, on the newest Python
	@env=$$($(core)) && export PATH="$$PWD/$$env/bin:$$PATH" && \
	coverage erase && coverage run -m pytest && coverage combine --quiet && \
	coverage report --include='$(covered)' --fail-under=100

test-floor: ## the same on the oldest Python, with the oldest packages we allow
	@env=$$($(floor)) && $$env/bin/python -m pytest

check: ## lint, format, types, layers, names, changelog
	@env=$$($(core)) && export PATH="$$PWD/$$env/bin:$$PATH" && \
	ruff check && ruff format --check && mypy && lint-imports --no-logo && \
	towncrier build --draft --version next >/dev/null && \
	python -m pytest -q tests/test_front_door.py tests/test_layers.py

upgrade: ## renew constraints/: the newest of everything, and the oldest we allow
	@env=$$($(core)) && export UV_PYTHON_DOWNLOADS=never UV_SYSTEM_CERTS=1 && \
	$$env/$(compile) --group dev --output-file constraints/core.txt && \
	$$env/$(compile) --group test --resolution lowest-direct --output-file constraints/floor.txt

changelog: ## move the fragments of changes/ into CHANGELOG.md
	@env=$$($(core)) && version=$$($$env/bin/python -c "import osmosis_ai as o; print(o.__version__)") && \
	$$env/bin/towncrier build --yes --version "$$version"

build: ## the wheel and the source archive, into dist/
	@env=$$($(core)) && UV_SYSTEM_CERTS=1 $$env/bin/uv build --quiet --out-dir dist && ls dist

clean: ## what tools leave behind; the environments go with `rm -rf .venv`
	rm -rf build dist htmlcov .coverage .coverage.* .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
