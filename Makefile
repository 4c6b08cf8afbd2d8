# Runnel's build. `make` alone prints the targets. Needs Go, make and git, nothing else; only `make race` needs a C compiler.
.POSIX:
.SUFFIXES:

GO = go

.PHONY: help
help: ## Print the targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  %-16s %s\n", $$1, $$2 }' Makefile

.PHONY: generate
generate: proto ## Regenerate committed generated code

.PHONY: proto
proto: ## Regenerate the Go code of api/**/*.proto
	@buf=$$(hack/tools/bin.sh buf) && plugins=$$(hack/tools/bin.sh protoc-gen) && \
	PATH="$$buf:$$plugins:$$PATH" && export PATH && cd api && buf format -w && buf lint && buf generate
