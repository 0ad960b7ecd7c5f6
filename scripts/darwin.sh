#!/usr/bin/env bash
# Builds egressd for macOS and vets each package of it with its tests. It takes minutes on a new machine, so it is part of
# make check and a job of its own in CI, and not of make test.
set -euo pipefail
cd "$(dirname "$0")/.."
mac=(env GOOS=darwin GOARCH=arm64 CGO_ENABLED=0)
"${mac[@]}" go build -o /dev/null ./cmd/egressd
"${mac[@]}" go vet $("${mac[@]}" go list -deps ./cmd/egressd | grep '^github.com/egressd/')
