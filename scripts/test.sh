#!/usr/bin/env bash
# Everything that has to be green, from a clean checkout, on a machine that may
# have nothing but Go, git and root. A test that skips itself is a failure.
#
#   scripts/test.sh                 all of it
#   scripts/test.sh unit waysin     two of the parts: unit, run, waysin, containers
#
# What waits runs beside what computes: the end-to-end tests, which mostly wait, have
# the processors first, and what they leave is for the linters and the other tests. Fuzz
# targets run their seeds and their corpus here, and look for more in make nightly.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin"

# The folders of e2e that a part runs, one after the other. The part unit has none.
declare -A lanes=([run]="run bare log" [waysin]="waysin inspect load policy" [containers]="containers docs operator")
missing=$(comm -3 <(printf '%s\n' ${lanes[*]} world chromium | sort) <(ls -d e2e/*/ | xargs -n 1 basename | sort))
if [ -n "$missing" ]; then
	echo "not once in a lane: $missing" >&2
	exit 1
fi
unit=
asked=" $* "
[ $# -gt 0 ] || asked=" unit ${!lanes[*]} "
for part in $asked; do
	if [ "$part" = unit ]; then
		unit=1
	elif [ -z "${lanes[$part]:-}" ]; then
		echo "there is no part $part; the parts are unit ${!lanes[*]}" >&2
		exit 2
	fi
done
for part in "${!lanes[@]}"; do
	[[ "$asked" == *" $part "* ]] || unset "lanes[$part]"
done

# One way to compile, that of make build, whatever the package is compiled for: each
# other way compiles all of it again. The race detector has a way of its own.
GOFLAGS="$(go env GOFLAGS | sed 's/ *-trimpath//') -trimpath"
export CGO_ENABLED=0 GOFLAGS

step() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS"; }

logs=$(mktemp -d)
declare -A lane=()
clean() {
	if [ -n "${lane[setup]:-}" ]; then
		wait "${lane[setup]}" 2>/dev/null || true # packages that are half installed would stay so
		unset 'lane[setup]'
	fi
	for p in "${lane[@]}"; do kill -- "-$p" 2>/dev/null || true; done
	rm -rf "$logs"
}
trap clean EXIT

# beside starts a command that logs to a file of its name. It is in a session of its own,
# so that all of it can be ended, and as nice as is said: to the others of its session and,
# where the kernel shares out processors among sessions first, as a session.
beside() { # a name, a niceness, a command
	(exec setsid nice -n "$2" bash -c '{ echo "$0" >/proc/self/autogroup; } 2>/dev/null || true; exec "$@"' "$2" "${@:3}" >"$logs/$1" 2>&1) &
	lane[$1]=$!
}

# ended waits for what was started, and sets status to its exit status.
ended() {
	status=0
	wait "${lane[$1]}" || status=$?
	unset "lane[$1]"
}

step setup
if [ -s /etc/ssl/certs/ca-certificates.crt ]; then
	beside setup 0 scripts/setup.sh commands
else # without which no module can be fetched
	scripts/setup.sh commands
	beside setup 0 true
fi
scripts/setup.sh modules
if [ -n "${lanes[containers]:-}" ]; then
	beside plugins 0 scripts/setup.sh plugins
fi

step build
mkdir -p build
go build -o build/egressd ./cmd/egressd
go build -o "$logs/bin/" ./internal/lab/engine/probe ./packaging/image
go build -modfile=tools/go.mod -o "$logs/bin/" github.com/summerwind/h2spec/cmd/h2spec
for folder in ${lanes[*]}; do
	echo "./e2e/$folder"
done | xargs -r go test -c -ldflags='-s -w' -o "$logs/e2e/"

lint() {
	unformatted=$(gofmt -l $(git ls-files '*.go'))
	if [ -n "$unformatted" ]; then
		printf 'not formatted:\n%s\n' "$unformatted"
		exit 1
	fi
	go vet ./...
	(cd bench && go vet ./... && go tool -modfile=../tools/go.mod staticcheck ./...)
	(cd examples/embed-goproxy && go vet ./... && go test -count=1 ./...)
	go tool -modfile=tools/go.mod staticcheck ./...
	scripts/deadcode.sh
	go tool -modfile=tools/go.mod actionlint integrations/github/workflow.yml .github/workflows/*.yml
}
export -f lint
[ -z "$unit" ] || beside lint 10 bash -euo pipefail -c lint

for name in setup plugins; do
	[ -n "${lane[$name]:-}" ] || continue
	ended "$name"
	cat "$logs/$name"
	[ "$status" -eq 0 ]
done

step "conformance and end-to-end tests"
export EGRESSD_COMPOSE=$PWD/build/plugins/docker-compose EGRESSD_BUILDX=$PWD/build/plugins/docker-buildx
export EGRESSD=$PWD/build/egressd EGRESSD_H2SPEC=$logs/bin/h2spec EGRESSD_PROBE=$logs/bin/probe EGRESSD_IMAGER=$logs/bin/image
# folders runs the tests of folders of e2e one after the other, each with a log and a status of its own.
folders() { # where logs go, folders
	local folder
	for folder in "${@:2}"; do
		{ env -C "e2e/$folder" "$1/e2e/$folder.test" -test.v -test.timeout 13m >"$1/$folder" 2>&1 && echo 0 || echo $?; } >"$1/$folder.status"
	done
}
export -f folders
for name in "${!lanes[@]}"; do
	beside "$name" 0 bash -euo pipefail -c 'folders "$@"' folders "$logs" ${lanes[$name]}
done

declare -A result
if [ -n "$unit" ]; then
	step "gofmt, vet, staticcheck, dead code, actionlint"
	ended lint
	cat "$logs/lint"
	[ "$status" -eq 0 ]

	# The race detector makes a program five times as slow. What starts no goroutine, or starts the
	# whole program a thousand times, runs without it; tests of rego and policy that start goroutines run with it too.
	# go vet has looked at all packages, with their tests.
	step "unit and script tests, with the race detector"
	plain=(go test -v -vet=off)
	# A program with the race detector would sleep for a second before it ends, and tests start many.
	race=(env CGO_ENABLED=1 GORACE=atexit_sleep_ms=10 "${plain[@]}" -race)
	alone=(./cmd/egressd ./rego ./policy ./logs/signals ./integrations/peers ./packaging/image .)
	packages=$(comm -23 <(go list ./... | grep -v '/e2e' | sort) <(go list "${alone[@]}" | sort))
	goroutines=$(git grep -lE '\.Go\(|go func' -- ':(glob)rego/*_test.go' ':(glob)policy/*_test.go' | xargs sed -nE 's/^func (Test[^(]+)\(.*/\1/p' | paste -sd '|')
	units() { # a name, a command
		beside "$1" 10 "${@:2}"
		ended "$1"
		result[$1]=$status
	}
	units alone "${plain[@]}" -count=1 "${alone[@]}"
	units goroutines "${race[@]}" -count=1 -run "^(${goroutines:?})\$" ./rego ./policy
	units unit "${race[@]}" -count=1 $packages
	units bench env -C bench "${race[@]}" -count=1 ./...
fi
for name in "${!lanes[@]}"; do
	ended "$name"
	result[$name]=$status
done
step "all have ended"

failures() { grep -vE '^(=== |\s*--- PASS)' "$1" >&2 || true; }

# A machine may be busier than a test allows for. At most two tests of a run that
# failed run again, alone and three times, and have to pass each time; the last line
# names them. What the race detector found, a panic or a time-out is not asked twice.
second=()
again() { # a log, a command that runs the test named by its last argument
	local failed name
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
		"${@:2}" "^$name\$" >"$logs/again" 2>&1 || { failures "$logs/again"; return 1; }
		[ "$(grep -c "^--- PASS: $name " "$logs/again")" -eq 3 ] || return 1
		echo "$name failed, and passed three times when it ran alone"
		second+=("$name")
		printf '%s\t%s\t%s\t%s\n' "$(date -u +%FT%TZ)" "$(git rev-parse --short HEAD)" "${1##*/}" "$name" >>build/run-again.tsv
	done
}
unit() {
	local name=${1#^}
	"${race[@]}" -count=3 -run "$1" $(git grep -l "^func ${name%\$}(" -- '*_test.go' ':!bench' | xargs -n 1 dirname | sort -u | sed 's|^|./|')
}

# judge says what came of tests that wrote to a log and ended with a status; the
# command after these runs one of them again.
judge() {
	if [ "$2" -ne 0 ]; then
		failures "$1"
		again "$1" "${@:3}"
	fi
	if grep -E '^\s*--- SKIP' "$1" >&2; then
		echo "a test was skipped" >&2
		return 1
	fi
	grep -E '^(ok|FAIL|---)|no test files' "$1" | grep -v -- '--- PASS' || true
	printf '%s tests passed\n' "$(grep -cE '^\s*--- PASS' "$1")"
}
if [ -n "$unit" ]; then
	for name in alone goroutines unit; do
		judge "$logs/$name" "${result[$name]}" unit
	done
	judge "$logs/bench" "${result[bench]}" env -C bench "${race[@]}" -count=3 ./... -run
fi
for name in "${!lanes[@]}"; do
	cat "$logs/$name"
	[ "${result[$name]}" -eq 0 ]
	for folder in ${lanes[$name]}; do
		echo "e2e/$folder"
		judge "$logs/$folder" "$(<"$logs/$folder.status")" env -C "e2e/$folder" "$logs/e2e/$folder.test" -test.v -test.timeout 13m -test.count 3 -test.run
	done
done

printf '\nall green%s, after %d s\n' "${second:+, but for what passed only when it ran again: ${second[*]}}" "$SECONDS"
