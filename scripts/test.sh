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

# A machine may be busier than a test allows for. At most two tests of a run that
# failed run again, alone and three times, and have to pass each time; the last line
# names them. What the race detector found, a panic or a time-out is not asked twice.
second=()
again() { # a log, a command that runs the test named by its last argument
	local failed
	failed=$(grep -oE '^--- FAIL: [^ ]+' "$1" | sed 's/.* //' | sort -u)
	if [ -z "$failed" ] || [ $((${#second[@]} + $(wc -w <<<"$failed"))) -gt 2 ] ||
		grep -qE 'DATA RACE|^panic:|^fatal error:|\[(build|setup) failed\]' "$1"; then
		return 1
	fi
	# So is what no test of a package has said: that goroutines are left, or that it was killed.
	if grep -qE '^(goleak|e2e|signal): ' "$1" ||
		! awk '/^--- FAIL: /{test=1} /^(ok  |FAIL)\t/{if($1=="FAIL"&&!test)bad=1; test=0} END{exit bad}' "$1"; then
		return 1
	fi
	for name in $failed; do
		"${@:2}" "^$name\$" >"$logs/again" 2>&1 || { cat "$logs/again" >&2; return 1; }
		[ "$(grep -c "^--- PASS: $name " "$logs/again")" -eq 3 ] || return 1
		echo "$name failed, and passed three times when it ran alone"
		second+=("$name")
	done
}
unit() {
	local name=${1#^}
	go test -count=3 -v -race -run "$1" $(git grep -l "^func ${name%\$}(" -- '*_test.go' | xargs -n 1 dirname | sort -u | sed 's|^|./|')
}

# judge says what came of tests that wrote to a log and ended with a status; the
# command after these runs one of them again.
judge() {
	if [ "$2" -ne 0 ]; then
		grep -vE '^(=== |\s*--- PASS)' "$1" >&2 || true
		again "$1" "${@:3}"
	fi
	if grep -E '^\s*--- SKIP' "$1" >&2; then
		echo "a test was skipped" >&2
		return 1
	fi
	grep -E '^(ok|FAIL|---)|no test files' "$1" | grep -v -- '--- PASS' || true
	printf '%s tests passed\n' "$(grep -cE '^\s*--- PASS' "$1")"
}

step "unit and script tests, with the race detector"
packages=$(go list ./... | grep -v '/e2e')
status=0
go test -count=1 -v -race $packages >"$logs/unit" 2>&1 || status=$?
judge "$logs/unit" "$status" unit

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
half=(env -C e2e "$logs/e2e.test" -test.v -test.timeout 13m)
beside first "${half[@]}" -test.run '^Test[A-DF-I]'
beside second "${half[@]}" -test.skip '^Test[A-DF-I]'
beside fuzz nice -n 19 scripts/fuzz.sh 10s
ended=(0 0 0)
for i in 0 1 2; do
	wait "${running[i]}" || ended[i]=$?
done
cat "$logs/fuzz"
[ "${ended[2]}" -eq 0 ]
judge "$logs/first" "${ended[0]}" "${half[@]}" -test.count 3 -test.run
judge "$logs/second" "${ended[1]}" "${half[@]}" -test.count 3 -test.run

printf '\nall green%s\n' "${second:+, but for what passed only when it ran again: ${second[*]}}"
