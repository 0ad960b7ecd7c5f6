#!/usr/bin/env bash
# Builds egressd for macOS on both machines, and vets each package of it, which compiles its tests. It takes minutes on a
# new machine, so it is part of make check and a job of its own in CI, and not of make test.
set -euo pipefail
cd "$(dirname "$0")/.."
for arch in arm64 amd64; do
	mac=(env GOOS=darwin "GOARCH=$arch" CGO_ENABLED=0)
	"${mac[@]}" go build -trimpath -o /dev/null ./cmd/egressd
	"${mac[@]}" go vet -trimpath $("${mac[@]}" go list -deps ./cmd/egressd | grep '^github.com/egressd/')
	echo "darwin/$arch: egressd builds, $("${mac[@]}" go list -deps ./cmd/egressd | grep -c '^github.com/egressd/') packages and their tests are vetted"
done
