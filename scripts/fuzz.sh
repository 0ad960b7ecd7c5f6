#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time each, as many at a time
# as the machine has cores. A package's targets are one binary, which is built while
# those of others run, or was before:
#
#   scripts/fuzz.sh 10s
#   scripts/fuzz.sh build FOLDER && scripts/fuzz.sh 10s FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
export each=${1:-10s}

# The fuzzing engine now and then takes the end of its own time for a failure
# ("context deadline exceeded", and no input to show for it). That says nothing
# about the target, so the target runs again; a third time counts. Left alone, it
# also spends a minute on making the first input small that it finds interesting.
fuzz() {
	local package=$1 binary=$2 target=$3 dir=.${1#github.com/egressd/egressd} try tries log=$2.$3.log
	for try in 1 2 3; do
		if (cd "$dir" && "$binary" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$each" -test.fuzzminimizetime 100x \
			-test.parallel 1 -test.fuzzcachedir "$cache/$package" -test.paniconexit0) >"$log" 2>&1; then
			tries=$(grep -o 'execs: [1-9][0-9]*' "$log" | tail -1)
			if [ -z "$tries" ]; then
				echo "fuzz: $target: its corpus took all of the time; once more"
				continue
			fi
			echo "fuzz: $package $target $each: $tries"
			return 0
		fi
		if [ "$try" -eq 3 ] || grep -q 'Failing input' "$log" || ! grep -q '^ *context deadline exceeded$' "$log"; then
			break
		fi
		echo "fuzz: $target: the engine ran out of time, not the target; once more"
	done
	echo "fuzz: $package $target: failed"
	cat "$log"
	return 255 # stops xargs
}
export -f fuzz

if [ $# -gt 1 ]; then
	bin=$(realpath -m "$2")
else
	bin=$(mktemp -d)
	trap 'rm -rf "$bin"' EXIT
fi
cache=$(go env GOCACHE)/fuzz
export cache

# targets builds what is to be run, with what the engine wants to know of its way, and
# prints each: a package, its folder, its binary, a target.
targets() {
	local package dir n=0
	for package in $(go list ./...); do
		dir=.${package#github.com/egressd/egressd}
		grep -qs '^func Fuzz' "$dir"/*_test.go || continue
		n=$((n + 1))
		go test -c -vet=off -ldflags='-s -w' -fuzz . -o "$bin/$n" "$package" >&2
		(cd "$dir" && "$bin/$n" -test.list '^Fuzz') | sed -n "s|^Fuzz|$package $bin/$n &|p"
	done
}
if [ "$each" = build ]; then
	mkdir -p "$bin"
	targets >"$bin/building"
	mv "$bin/building" "$bin/targets"
	exit
fi
if [ -e "$bin/targets" ]; then cat "$bin/targets"; else targets | tee "$bin/targets"; fi | xargs -P "$(nproc)" -L 1 bash -c 'fuzz "$@"' fuzz
[ -s "$bin/targets" ]
if grep -q 'was not built with coverage instrumentation' "$bin"/*.log; then
	echo "fuzz: the engine sees nothing of a target's way" >&2
	exit 1
fi
echo "fuzz: $(wc -l <"$bin/targets") targets"
