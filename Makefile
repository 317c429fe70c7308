# Everything goes through here; `make help` lists it. Targets that need Python set it up first.
.DEFAULT_GOAL := help
BIN := .venv/bin
PYTEST_ARGS ?=

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Make .venv with everything; instant when nothing changed
	@scripts/setup.sh

.PHONY: demo
demo: setup ## Make a tiny model and train it with GRPO through real role processes
	$(BIN)/python examples/quickstart/prepare.py
	rm -rf runs/demo
	$(BIN)/trimtab run examples/quickstart/job.yaml --run-dir runs/demo

.PHONY: test
test: setup ## Run every test that this machine can run
	$(BIN)/python -m pytest $(PYTEST_ARGS)

.PHONY: test-fast
test-fast: setup ## Run the tests that start no whole job
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

.PHONY: test-cluster
test-cluster: setup ## Run whole jobs in the cluster that KUBECONFIG names (docs/cluster-tests.md)
	$(BIN)/python -m pytest tests/cluster $(PYTEST_ARGS)

.PHONY: lint
lint: setup ## Check style, formatting, imports between layers and shell scripts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/hadolint images/*/Dockerfile
	for script in scripts/*.sh .ci/run; do bash -n "$$script" || exit 1; done

.PHONY: types
types: setup ## Check types, strictly
	$(BIN)/mypy

.PHONY: format
format: setup ## Rewrite what the linter and formatter can put right themselves
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: verify
verify: setup ## Regenerate everything generated and fail on a difference
	$(BIN)/python scripts/verify_generated.py

.PHONY: proto
proto: setup ## Regenerate the Python beside the .proto files
	$(BIN)/python scripts/generate_proto.py

.PHONY: docs
docs: setup ## Regenerate the reference pages
	$(BIN)/python scripts/generate_reference.py
	$(BIN)/python scripts/generate_metrics_page.py
	$(BIN)/python scripts/generate_operator_page.py
	$(BIN)/python scripts/generate_conditions.py
	$(BIN)/python scripts/generate_chart_readme.py

.PHONY: bench
bench: setup ## Run the benchmarks one after the other (about an hour on two cores)
	for script in $(filter-out benchmarks/operator_scale.py,$(wildcard benchmarks/*.py)); do \
	  echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

.PHONY: bench-operator
bench-operator: setup ## Measure the operator beside KubeRay; ARGS as benchmarks/README.md has them
	$(BIN)/python benchmarks/operator_scale.py $(ARGS)

.PHONY: crd
crd: setup ## Regenerate the CustomResourceDefinition in the chart, and its page
	$(BIN)/python scripts/generate_crd.py

.PHONY: images
images: ## Build the images with docker, podman or buildah (images/README.md)
	scripts/build_images.sh

.PHONY: lock-images
lock-images: setup ## Pin what the images install, after a change of dependencies
	scripts/lock_images.sh
