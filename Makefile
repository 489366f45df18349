# Two commands matter: `make demo` runs an evaluation, `make test` runs every test.
# Environments are made in .venv/ as needed, with the newest Python found: see tools/.

core = tools/environment core newest constraints/core.txt -e '.[eval,parquet]' --group dev
floor = tools/environment floor oldest constraints/floor.txt -e '.[eval,parquet]' --group test --group tool
# What one resolution cannot hold has environments of its own: frameworks, Harbor, data sets.
strands = tools/environment strands newest constraints/strands.txt -e '.[server,strands,litellm]' --group strands
openai-agents = tools/environment openai-agents newest constraints/openai-agents.txt \
	-e '.[server,openai-agents,litellm]' --group openai-agents
harbor = tools/environment harbor newest constraints/harbor.txt -e '.[harbor]' --group test
data = tools/environment data newest constraints/data.txt -e '.[eval,parquet,datasets]' --group data
demo = tools/environment demo newest constraints/core.txt -e '.[eval]'

# Every branch of these is tested: `make test` fails where one is not.
covered = osmosis_ai/*.py,osmosis_ai/rollout/**,osmosis_ai/eval/**

# These run in the environments of the frameworks, and where the package `datasets` is installed.
elsewhere = osmosis_ai/rollout/integrations/agents/**,osmosis_ai/rollout/litellm_interpreter.py,osmosis_ai/rollout/controller/model/litellm.py,osmosis_ai/eval/datasets_folder.py

compile = bin/uv pip compile --quiet --upgrade --universal --no-annotate --no-header

.PHONY: demo gsm8k test test-frameworks test-harbor test-data test-floor check upgrade changelog build clean

demo: ## run the multiply evaluation end to end
	@env=$$($(demo)) && $$env/bin/osmosis eval run examples/multiply/configs/eval/multiply.toml --name demo

gsm8k: ## replay the recorded GSM8K completions: one line a model, NAME PASSED/TOTAL
	@env=$$($(demo)) && $$env/bin/python examples/gsm8k/run.py

test: ## every test, on the newest Python
	@env=$$($(core)) && export PATH="$$PWD/$$env/bin:$$PATH" && \
	coverage erase && coverage run -m pytest && coverage combine --quiet && \
	coverage report --include='$(covered)' --omit='$(elsewhere)' --fail-under=100
	@$(MAKE) --no-print-directory test-frameworks test-harbor test-data

test-frameworks: ## agents of each framework, in the environments of the frameworks
	@env=$$($(strands)) && REQUIRE_TESTS="test_strands test_langgraph test_smolagents \
		test_google_adk test_clients test_judge test_drivers test_litellm_model \
		test_responses" $$env/bin/python -m pytest tests/frameworks
	@env=$$($(openai-agents)) && REQUIRE_TESTS="test_openai_agents test_pydantic_ai \
		test_clients test_judge test_drivers test_responses test_messages \
		test_dialect_agents test_litellm_model" $$env/bin/python -m pytest tests/frameworks

test-harbor: ## archived documents against Harbor's models, which need Python 3.12
	@env=$$($(harbor)) && python=$$env/bin/python && new='sys.version_info >= (3, 12)' && \
	REQUIRE_TESTS=$$($$python -c "import sys; print('test_models' if $$new else '')") \
	$$python -m pytest tests/rollout/trajectory/test_models.py

test-data: ## rows of the package `datasets`, and reasoning-gym's with its own scorer
	@env=$$($(data)) && export PATH="$$PWD/$$env/bin:$$PATH" COVERAGE_FILE=.coverage.data && \
	coverage erase && REQUIRE_TESTS="test_datasets_folder test_reasoning_gym" coverage run \
		-m pytest tests/eval/test_datasets_folder.py tests/eval/test_reasoning_gym.py && \
	coverage combine --quiet && \
	coverage report --include=osmosis_ai/eval/datasets_folder.py --fail-under=100

test-floor: ## the same on the oldest Python, with the oldest packages we allow
	@env=$$($(floor)) && $$env/bin/python -m pytest

check: ## lint, format, types, layers, names, changelog
	@env=$$($(core)) && export PATH="$$PWD/$$env/bin:$$PATH" && \
	ruff check && ruff format --check && mypy && lint-imports --no-logo && \
	towncrier build --draft --version next >/dev/null && \
	REQUIRE_TESTS= python -m pytest -q tests/test_front_door.py tests/test_layers.py

upgrade: ## renew constraints/: the newest of everything, and the oldest we allow
	@env=$$($(core)) && export UV_PYTHON_DOWNLOADS=never UV_SYSTEM_CERTS=1 && \
	pins() { $$env/$(compile) "$$@" pyproject.toml; } && \
	pins --python-version 3.11 --extra eval --extra parquet --group dev --output-file constraints/core.txt && \
	pins --python-version 3.11 --extra eval --extra parquet --group test --group tool \
		--resolution lowest-direct --output-file constraints/floor.txt && \
	for name in strands openai-agents; do \
		pins --python-version 3.11 --extra server --extra litellm --extra $$name --group $$name \
			--output-file constraints/$$name.txt || exit 1; \
	done && \
	pins --python-version 3.11 --extra eval --extra parquet --extra datasets --group data \
		--output-file constraints/data.txt && \
	pins --python-version 3.12 --extra harbor --group test --output-file constraints/harbor.txt

changelog: ## move the fragments of changes/ into CHANGELOG.md
	@env=$$($(core)) && version=$$($$env/bin/python -c "import osmosis_ai as o; print(o.__version__)") && \
	$$env/bin/towncrier build --yes --version "$$version"

build: ## the wheel and the source archive, into dist/
	@env=$$($(core)) && UV_SYSTEM_CERTS=1 $$env/bin/uv build --quiet --out-dir dist && ls dist

clean: ## what tools leave behind; the environments go with `rm -rf .venv`
	rm -rf build dist htmlcov .coverage .coverage.* .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
