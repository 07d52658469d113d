# Every target sets up what it needs; `make help` lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
python := .venv/bin/python
# A tag can have any name: recipes have it as it is from their environment, expanded neither by make nor by the shell.
ifdef TAG
override TAG := $(value TAG)
export TAG
endif

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

.PHONY: env
env: ## make or update the locked development environment in .venv
	@tools/env.sh

.PHONY: env-emulated
env-emulated: env ## make or update .venv-emulated, with the CUDA build of torch for the emulated GPU
	@tools/env_emulated.sh

.PHONY: lock
lock: env ## write the lock files anew after a dependency changed
	@tools/lock.sh

.PHONY: lint
lint: env ## style (ruff), types (mypy strict), import rules (import-linter), workflows and action (zizmor and their schemas)
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	PYTHONPATH=core:operator:runner:cli .venv/bin/lint-imports
	.venv/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yaml examples/peaks/workflow.yaml
	.venv/bin/check-jsonschema --builtin-schema vendor.github-actions .github/actions/*/action.yaml
	.venv/bin/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	.venv/bin/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug_report.yml .github/ISSUE_TEMPLATE/feature_request.yml
	.venv/bin/zizmor --offline --quiet .github examples/peaks/workflow.yaml

.PHONY: generate
generate: env ## write the generated files anew
	$(python) tools/generate_crd.py
	$(python) tools/generate_dashboards.py

.PHONY: verify
verify: env ## fail when a generated file is not up to date
	$(python) tools/generate_crd.py --check
	$(python) tools/generate_dashboards.py --check

.PHONY: test
test: env ## all tests but the slow half of those on a cluster, with a table of where the time went
	@$(python) tools/run_tests.py --marks 'not slow'

.PHONY: test-all
test-all: ## every test this machine can run: `make test`, then `make test-slow`
	@code=0; for half in test test-slow; do $(MAKE) --no-print-directory $$half || code=$$?; done; exit $$code

.PHONY: test-slow
test-slow: env ## the slow half of the tests on a cluster
	@$(python) tools/run_tests.py --marks slow cluster

.PHONY: test-unit
test-unit: env ## the unit tests: seconds, no I/O
	@$(python) tools/run_tests.py unit

.PHONY: test-contract
test-contract: env ## what needs torch, a real library or processes
	@$(python) tools/run_tests.py contract

.PHONY: coverage
coverage: env ## how much of the four packages the unit and contract tests run, with branches
	rm -rf build/coverage && mkdir -p build/coverage
	@# Two tests refuse what coverage prints where it cannot write its data; the report follows all the same.
	-$(python) -m coverage run tools/run_tests.py unit contract
	$(python) -m coverage combine --quiet
	$(python) -m coverage report --skip-covered

.PHONY: test-emulated
test-emulated: env-emulated ## the emulated GPU with the CUDA build of torch
	$(python) -m pytest tests/emulated

.PHONY: test-scripts
test-scripts: env ## programs of other packages, run unmodified by memtune run: some ten minutes
	@$(python) tools/run_tests.py scripts

.PHONY: bench
bench: env ## the tables of bench/; PEAKS=FILE.csv scores the memory prediction on other peaks
	$(python) bench/allocator.py
	$(python) bench/space.py
	$(python) bench/throughput.py
	$(python) bench/overhead.py
	$(python) bench/search.py
	$(python) bench/pruning.py
	PYTHONPATH=bench $(python) bench/truth.py
	PYTHONPATH=bench $(python) bench/tracing.py
	$(python) bench/accuracy_device.py
	$(python) bench/job_width.py
	$(python) bench/accuracy.py $(or $(PEAKS),bench/data/measured_memory.csv) --leave-one-source-out

.PHONY: bench-emulated
bench-emulated: env-emulated ## published peaks beside the emulated GPU's
	$(python) bench/emulated.py
	$(python) bench/emulated_alone.py
	$(python) bench/emulated_forks.py
	$(python) bench/emulated_sources.py litgpt
	$(python) bench/emulated_pairs.py
	$(python) bench/emulated_needed.py

.PHONY: bench-operator
bench-operator: env ## what the operator costs, on the cluster, started if none is up: some ten minutes
	@python3 -m dev.cluster up
	$(python) bench/operator_cost.py

.PHONY: bench-devcluster
bench-devcluster: env ## how long the cluster takes to start and to end, and its smoke tests; none may be up: some ten minutes
	$(python) bench/cluster_times.py

.PHONY: docs
docs: env ## the documentation as a site in build/site; a broken link ends it
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

.PHONY: dist
dist: env ## the wheel, tried in an environment of its own, and the source distribution, in dist/python
	rm -rf dist/python
	tools/build_wheel.sh dist/python
	tools/try_wheel.sh dist/python/*.whl

.PHONY: chart
chart: env ## the chart's package in dist/chart, for the images of REGISTRY=HOST/OWNER
	rm -rf dist/chart
	$(python) tools/release.py chart "$(REGISTRY)" dist/chart

.PHONY: release-version
release-version: ## check that TAG=vX.Y.Z names the version of the packages, the chart and the changelog
	@python3 tools/release.py version "$$TAG"

.PHONY: clean
clean: ## remove the development environment and every cache
	rm -rf .venv .venv-emulated .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist

.PHONY: cluster
cluster: ## a real Kubernetes on this Debian machine; NODES=1 for a smaller one
	@python3 -m dev.cluster up --nodes $(or $(NODES),2)

.PHONY: cluster-down
cluster-down: ## end the cluster and remove every trace of it
	@python3 -m dev.cluster down

.PHONY: dashboards
dashboards: ## the dashboards of the running cluster, drawn by a page on this machine
	@python3 -m dev.cluster dashboards

.PHONY: demo
demo: ## a job that recovers from an out-of-memory, seen; CLUSTER=kind, devcluster, current or none (default: the best here)
	@python=$$(tools/python.sh) && $$python -m tools.demo

.PHONY: demo-clean
demo-clean: ## end what `make demo` left running
	@python=$$(tools/python.sh) && $$python -m tools.demo clean

.PHONY: screenshots
screenshots: env ## take the pictures of the dashboards anew, from a real job
	MEMTUNE_SCREENSHOTS=docs/images $(python) -m pytest tests/cluster/chart/test_dashboards.py

.PHONY: test-cluster
test-cluster: env ## the tests on a real cluster, started for them if none is up; skipped where none can run
	@$(python) tools/run_tests.py cluster

.PHONY: kind
kind: env ## a kind cluster for the cluster tests, on any machine with Docker and kind; KUBERNETES=1.36
	$(python) tools/kind_cluster.py up $(or $(KUBERNETES),1.36)

.PHONY: test-kind
test-kind: env ## the cluster tests on the cluster of `make kind`
	$(python) tools/kind_cluster.py test

.PHONY: kind-down
kind-down: env ## end the cluster of `make kind`
	$(python) tools/kind_cluster.py down

.PHONY: soak
soak: env ## objects written and pods started without a pause on the cluster, started if none is up; MINUTES=30
	@python3 -m dev.cluster up
	$(python) bench/soak.py --minutes $(or $(MINUTES),30)
