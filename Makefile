# Every target sets up what it needs; `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help env lock lint verify generate test test-unit bench clean
SHELL := /bin/bash
PYTHON_FILES := core cli operator runner tests bench tools
run := .venv/bin/python

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

env: ## make or update the locked development environment in .venv
	@tools/env.sh

lock: ## write the lock files anew after a dependency changed
	@tools/lock.sh

clean: ## remove the development environment and every cache
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
