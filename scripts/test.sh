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

logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT

# judge says what came of tests that wrote to a log and ended with a status.
judge() {
	if [ "$2" -ne 0 ]; then
		grep -vE '^(=== |\s*--- PASS)' "$1" >&2 || true
		return 1
	fi
	if grep -E '^\s*--- SKIP' "$1" >&2; then
		echo "a test was skipped" >&2
		return 1
	fi
	grep -E '^(ok|FAIL|---)|no test files' "$1" | grep -v -- '--- PASS' || true
	printf '%s tests passed\n' "$(grep -cE '^\s*--- PASS' "$1")"
}

step "unit and script tests, with the race detector"
status=0
go test -count=1 -v -race $(go list ./... | grep -v '/e2e') >"$logs/unit" 2>&1 || status=$?
judge "$logs/unit" "$status"

mkdir -p build
CGO_ENABLED=0 go build -trimpath -o build/egressd ./cmd/egressd

# The end-to-end tests mostly wait, so half of them run beside the other, and the fuzz
# targets beside both, on what they leave of the processors.
step "conformance and end-to-end tests; fuzz targets, ten seconds each"
go test -c -o "$logs/e2e.test" ./e2e
running=()
trap 'for p in "${running[@]}"; do kill -- "-$p" 2>/dev/null || true; done; rm -rf "$logs"' EXIT
export EGRESSD=$PWD/build/egressd
beside() { # a log, a command: in a process group of its own, so that all of it can be ended
	(exec setsid "${@:2}" >"$logs/$1" 2>&1) &
	running+=($!)
}
half=(env -C e2e "$logs/e2e.test" -test.v -test.timeout 9m)
beside first "${half[@]}" -test.run '^Test[A-DF-I]'
beside second "${half[@]}" -test.skip '^Test[A-DF-I]'
beside fuzz nice -n 19 scripts/fuzz.sh 10s
status=0
wait "${running[0]}" || status=$?
judge "$logs/first" "$status"
status=0
wait "${running[1]}" || status=$?
judge "$logs/second" "$status"
status=0
wait "${running[2]}" || status=$?
cat "$logs/fuzz"
[ "$status" -eq 0 ]

printf '\nall green\n'
