# Every target says what it does; `make` lists them.
SHELL := /bin/bash
BIN := build/egressd
CONFIG := build/run/egressd.yaml
PEERS ?= goproxy smokescreen squid tinyproxy
FUZZTIME ?= 60s
PART ?=

# One way to compile, here, in CI and by hand: each other way compiles everything again.
export CGO_ENABLED := 0
export GOFLAGS := $(filter-out -trimpath,$(shell go env GOFLAGS)) -trimpath

.DEFAULT_GOAL := help
.PHONY: help build image packages release releasecheck run test quick nightly setup check race opa bench reach lint e2e conformance man docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## build build/egressd, one static binary
	go build -o $(BIN) ./cmd/egressd

image: build ## write build/egressd-image.tar, a container image for docker load or podman load
	go run ./packaging/image -binary $(BIN) -o build/egressd-image.tar

packages: build ## write the deb and the rpm to build/packages, and look into them (needs dpkg and rpm)
	scripts/packages.sh --check

release: ## write everything of a release to dist/, with the version of the git tag
	scripts/release.sh

releasecheck: ## install and use everything in dist/ (Debian or Ubuntu, as root)
	scripts/release-check.sh

run: build ## build, write the starter policy to build/run, and serve it on 127.0.0.1:3128
	@mkdir -p build/run
	@test -f $(CONFIG) || $(BIN) init --print >$(CONFIG)
	XDG_STATE_HOME=$(CURDIR)/build/run $(BIN) serve --config $(CONFIG)

test: ## install what is missing and run everything that CI runs
	scripts/test.sh $(PART)

quick: ## build, vet, and the unit tests of what changed and of what imports it
	go build -o $(BIN) ./cmd/egressd
	go vet ./...
	go test -vet=off $$(go list ./... | grep -v /e2e)

nightly: ## what make test has no time for: every fuzz target for FUZZTIME (60s), and 2,000 damaged logs
	EGRESSD_AUDIT_MUTATIONS=2000 go test -count=1 -run 'TestBothVerifiers' ./audit
	scripts/fuzz.sh $(FUZZTIME)

setup: ## install what the tests need (Debian or Ubuntu, as root)
	scripts/setup.sh

check: ## format, vet, staticcheck, dead code, actionlint and the build for macOS
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	cd bench && go vet ./... && go tool -modfile=../tools/go.mod staticcheck ./...
	scripts/darwin.sh
	go tool -modfile=tools/go.mod staticcheck ./...
	scripts/deadcode.sh
	go tool -modfile=tools/go.mod actionlint integrations/github/workflow.yml .github/workflows/*.yml

race: ## unit and script tests with the race detector
	CGO_ENABLED=1 GORACE=atexit_sleep_ms=10 go test -race $$(go list ./... | grep -v /e2e)
	cd bench && CGO_ENABLED=1 GORACE=atexit_sleep_ms=10 go test -race ./...

e2e: build ## the conformance suite and the end-to-end tests, in network namespaces
	EGRESSD=$(CURDIR)/$(BIN) go test -count=1 ./e2e/...

conformance: build ## the conformance suite alone, with the IDs of the cases that it covers
	EGRESSD=$(CURDIR)/$(BIN) go test -count=1 -v -run 'TestConformance|TestCoverage' ./e2e/waysin ./e2e/inspect

opa: ## the example policies under the opa command itself, which is built for that: minutes
	scripts/opa.sh

bench: build ## measure against direct and PEERS="goproxy smokescreen squid tinyproxy", mitmproxy too
	cd bench && go run . -egressd ../$(BIN) -peers "$(PEERS)" $(BENCHFLAGS)
	go test -run - -bench 'Append' -benchtime 300ms ./audit
	go test -run - -bench 'Evaluate|Lists|Parallel' -benchtime 300ms ./rego

reach: ## print how many files of the core one operation runs through; REACHFLAGS=-files names them
	cd bench && go run ./reach $(REACHFLAGS)

lint: ## the linters that CI does not need
	go tool -modfile=tools/go.mod gofumpt -l .

man: build ## write the manual pages to build/man, and the command-line reference to docs/reference/cli
	@rm -rf build/man
	$(BIN) man build/man docs/reference/cli

docs: ## write the documentation as a site with search to build/site (needs mkdocs and python3-pymdownx)
	mkdocs build --quiet --strict
	@rm -rf build/site/verify build/site/*.go

clean: ## remove build/
	rm -rf build
