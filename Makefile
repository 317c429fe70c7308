PY := .venv/bin/python

.PHONY: proto
proto: ## Regenerate the Python beside the .proto files
	$(PY) scripts/generate_proto.py
