# Runnel's build. `make` alone prints the targets.
# Needs Go, make and git; only `make race` needs a C compiler as well. Recipes are plain POSIX sh.
.POSIX:
.SUFFIXES:

GO = go
# More flags for go test, e.g. make test TESTFLAGS='-run TestAppend -v' PKG=./broker/log
TESTFLAGS =
PKG = ./...
# More flags for golangci-lint, e.g. make lint LINTFLAGS=--fix
LINTFLAGS =
# How long each fuzz target runs: a time, or a number of executions such as 10000x.
FUZZTIME = 30s
# More flags for the programs behind the targets of these names.
QUICKSTARTFLAGS =
CRASHFLAGS =
# make sim: how many seeds, or which one, and with TRACE=1 its whole trace.
SEEDS = 200
SEED = 0
TRACE = 0
# make sim-mutants: how many seeds a known bug may survive.
MUTANT_SEEDS = 400
CHAOS_TIME = 5m
CHAOSFLAGS =
BENCHFLAGS =
PEERSFLAGS =

VERSION_PKG = runnel.dev/runnel/internal/version
# Names the build: the tag or `git describe`, the commit, and the commit's time, so that one commit builds the same bytes.
LDFLAGS = -s -w \
	-X $(VERSION_PKG).Version=$$(git describe --tags --always --dirty 2>/dev/null) \
	-X $(VERSION_PKG).Commit=$$(git rev-parse HEAD 2>/dev/null) \
	-X $(VERSION_PKG).Date=$$(git log -1 --format=%cI 2>/dev/null)

.PHONY: help
help: ## Print the targets
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  %-16s %s\n", $$1, $$2 }' Makefile

##### Build and try

.PHONY: build
build: bin-runnel bin-grpcurl ## Build bin/runnel, and bin/grpcurl at its pinned version

.PHONY: bin-runnel
bin-runnel:
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags "$(LDFLAGS)" -o bin/runnel ./cmd/runnel

.PHONY: bin-grpcurl
bin-grpcurl:
	@mkdir -p bin
	@tool=$$(hack/tools/bin.sh grpcurl) && cp -f "$$tool/grpcurl" bin/grpcurl

.PHONY: quickstart
quickstart: bin-runnel ## The whole story on real input, then it stops
	CGO_ENABLED=0 $(GO) run ./hack/quickstart -runnel bin/runnel $(QUICKSTARTFLAGS)

.PHONY: failures
failures: bin-runnel ## What the command line shows while brokers die, etcd stops and a disk is lost
	CGO_ENABLED=0 $(GO) run ./hack/failures -runnel bin/runnel

##### Test

.PHONY: test
test: ## All tests, without the race detector
	CGO_ENABLED=0 $(GO) test $(TESTFLAGS) $(PKG)

.PHONY: race
race: ## All tests with the race detector (needs a C compiler)
	CGO_ENABLED=1 $(GO) test -race $(TESTFLAGS) $(PKG)

.PHONY: fuzz
fuzz: ## Every fuzz target for FUZZTIME each
	CGO_ENABLED=0 hack/fuzz.sh "$(FUZZTIME)"

.PHONY: crash
crash: bin-runnel ## Kill real brokers under load, also on a file system that drops unsynced writes; check the history
	CGO_ENABLED=0 $(GO) run ./test/crash -runnel bin/runnel $(CRASHFLAGS)

.PHONY: bin-sim
bin-sim:
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build -tags invariants -o bin/sim ./test/sim/cmd

.PHONY: sim
sim: bin-sim ## The simulated cluster: SEEDS seeds, or one: SEED=17 TRACE=1
	bin/sim -seeds $(SEEDS) -seed $(SEED) -trace=$(TRACE)

.PHONY: sim-mutants
sim-mutants: ## Plant known bugs one at a time; the simulated cluster has to catch each
	CGO_ENABLED=0 $(GO) run ./test/sim/mutants -seeds $(MUTANT_SEEDS)

.PHONY: chaos
chaos: bin-runnel ## Kill, pause, cut off, fill and empty real brokers and etcd under load for CHAOS_TIME; check the history (Linux, root)
	CGO_ENABLED=0 $(GO) run ./test/chaos -runnel bin/runnel -time $(CHAOS_TIME) $(CHAOSFLAGS)

.PHONY: bench
bench: bin-runnel ## Measure against the targets and print the table
	CGO_ENABLED=0 $(GO) run ./hack/bench -runnel bin/runnel $(BENCHFLAGS)

.PHONY: bench-peers
bench-peers: bin-runnel ## Measure beside NATS JetStream and Apache Kafka, three servers each, and print the table of ratios
	hack/bench/peers.sh $(PEERSFLAGS)

##### Check

.PHONY: lint
lint: ## Lint Go and protobuf sources
	@tool=$$(hack/tools/bin.sh golangci-lint) && "$$tool/golangci-lint" run --allow-serial-runners $(LINTFLAGS) $(PKG)
	@tool=$$(hack/tools/bin.sh buf) && cd api && "$$tool/buf" lint && "$$tool/buf" format --diff --exit-code

.PHONY: fmt
fmt: ## Format Go and protobuf sources
	@tool=$$(hack/tools/bin.sh golangci-lint) && "$$tool/golangci-lint" fmt
	@tool=$$(hack/tools/bin.sh buf) && cd api && "$$tool/buf" format -w

.PHONY: generate
generate: manifests ## Regenerate all committed generated code
	@buf=$$(hack/tools/bin.sh buf) && plugins=$$(hack/tools/bin.sh protoc-gen) && \
	cd api && PATH="$$buf:$$plugins:$$PATH" buf generate

.PHONY: manifests
manifests: ## Regenerate what api/v1alpha1 is the source of: deepcopy functions, CRDs, the chart's copy of them
	@rm -f config/crd/bases/*.yaml charts/runnel/files/crds/*.yaml
	@mkdir -p charts/runnel/files/crds
	@tool=$$(hack/tools/bin.sh controller-gen) && "$$tool/controller-gen" object crd paths=./api/v1alpha1 output:crd:dir=config/crd/bases
	@cp config/crd/bases/*.yaml charts/runnel/files/crds/

.PHONY: drift
drift: ## Fail when generated code or go.mod is not what its sources say
	hack/drift.sh

.PHONY: proto-breaking
proto-breaking: ## Refuse API changes that break clients of tag v0.1
	@if git rev-parse -q --verify refs/tags/v0.1 >/dev/null; then \
		tool=$$(hack/tools/bin.sh buf) && "$$tool/buf" breaking api --against '.git#tag=v0.1,subdir=api'; \
	else \
		echo "proto-breaking: there is no tag v0.1 yet, so nothing is promised yet"; \
	fi

.PHONY: chart-lint
chart-lint: ## Lint the Helm chart and check what it renders
	@tool=$$(hack/tools/bin.sh helm) && PATH="$$tool:$$PATH" hack/chart-lint.sh

.PHONY: tools
tools: ## Build all pinned tools
	@for module in hack/tools/*/; do hack/tools/bin.sh "$$(basename "$$module")" || exit 1; done

.PHONY: clean
clean: ## Remove what the build made
	rm -rf bin dist cover.out
