#!/usr/bin/env bash
# Everything that has to be green, from a clean checkout, on a machine that may
# have nothing but Go, git and root. A test that skips itself is a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin"

step() { printf '\n== %s\n' "$*"; }

step setup
scripts/setup.sh

step "gofmt, vet, staticcheck, actionlint"
unformatted=$(gofmt -l $(git ls-files '*.go'))
if [ -n "$unformatted" ]; then
	printf 'not formatted:\n%s\n' "$unformatted" >&2
	exit 1
fi
go vet ./...
(cd bench/peers && go vet ./...)
go tool -modfile=tools/go.mod staticcheck ./...
go tool -modfile=tools/go.mod actionlint integrate/github.yml

log=$(mktemp)
trap 'rm -f "$log"' EXIT
run_tests() {
	if ! go test -count=1 -v "$@" >"$log" 2>&1; then
		grep -vE '^(=== |\s*--- PASS)' "$log" >&2 || true
		exit 1
	fi
	if grep -E '^\s*--- SKIP' "$log" >&2; then
		echo "a test was skipped" >&2
		exit 1
	fi
	grep -E '^(ok|FAIL|---)|no test files' "$log" | grep -v -- '--- PASS' || true
	printf '%s tests passed\n' "$(grep -cE '^\s*--- PASS' "$log")"
}

step "unit and script tests, with the race detector"
run_tests -race $(go list ./... | grep -v '/e2e')

mkdir -p build
CGO_ENABLED=0 go build -trimpath -o build/egressd ./cmd/egressd

# The end-to-end tests mostly wait, so the fuzz targets run beside them, on what they
# leave of the processors.
step "conformance and end-to-end tests; fuzz targets, ten seconds each"
fuzz=$(mktemp)
setsid nice -n 19 scripts/fuzz.sh 10s >"$fuzz" 2>&1 &
fuzzing=$!
trap 'rm -f "$log" "$fuzz"; kill -- "-$fuzzing" 2>/dev/null || true' EXIT
EGRESSD=$PWD/build/egressd run_tests -timeout 8m ./e2e/...
if ! wait "$fuzzing"; then
	cat "$fuzz" >&2
	exit 1
fi
cat "$fuzz"

printf '\nall green\n'
