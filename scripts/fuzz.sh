#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time each, as many at a time
# as the machine has cores.
set -euo pipefail
cd "$(dirname "$0")/.."
export each=${1:-10s}

# The fuzzing engine now and then takes the end of its own time for a failure
# ("context deadline exceeded", and no input to show for it). That says nothing
# about the target, so the target runs again; a second time counts. Left alone, it
# also spends a minute on making the first input small that it finds interesting.
fuzz() {
	local package=$1 target=$2 try log
	log=$(mktemp)
	for try in 1 2; do
		if go test -run '^$' -fuzz "^$target\$" -fuzztime "$each" -fuzzminimizetime 100x -parallel 1 "$package" >"$log" 2>&1; then
			echo "fuzz: $package $target $each: $(grep -o 'execs: [0-9]*' "$log" | tail -1)"
			rm -f "$log"
			return 0
		fi
		if [ "$try" -eq 2 ] || grep -q 'Failing input' "$log" || ! grep -q '^ *context deadline exceeded$' "$log"; then
			break
		fi
		echo "fuzz: $target: the engine ran out of time, not the target; once more"
	done
	echo "fuzz: $package $target: failed"
	cat "$log"
	rm -f "$log"
	return 255 # stops xargs
}
export -f fuzz

list=$(mktemp)
trap 'rm -f "$list"' EXIT
for package in $(go list ./...); do
	dir=${package#github.com/egressd/egressd}
	[ -n "$(grep -ls '^func Fuzz' ".$dir"/*_test.go 2>/dev/null || true)" ] || continue
	go test -list '^Fuzz' "$package" | sed -n "s|^Fuzz|$package &|p" >>"$list"
done
[ -s "$list" ]
xargs -P "$(nproc)" -L 1 bash -c 'fuzz "$0" "$1"' <"$list"
echo "fuzz: $(wc -l <"$list") targets"
