#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time each.
set -euo pipefail
cd "$(dirname "$0")/.."
each=${1:-10s}
ran=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# The fuzzing engine now and then takes the end of its own time for a failure
# ("context deadline exceeded", and no input to show for it). That says nothing
# about the target, so the target runs again; a second time counts.
fuzz() {
	local package=$1 target=$2
	for try in 1 2; do
		if go test -run '^$' -fuzz "^$target\$" -fuzztime "$each" "$package" 2>&1 | tee "$log"; then
			return 0
		fi
		if [ "$try" -eq 2 ] || grep -q 'Failing input' "$log" || ! grep -q '^ *context deadline exceeded$' "$log"; then
			return 1
		fi
		echo "fuzz: $target: the engine ran out of time, not the target; once more"
	done
}

for package in $(go list ./...); do
	dir=${package#github.com/egressd/egressd}
	[ -n "$(grep -ls '^func Fuzz' ".$dir"/*_test.go 2>/dev/null || true)" ] || continue
	for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz'); do
		echo "fuzz: $package $target $each"
		fuzz "$package" "$target"
		ran=$((ran + 1))
	done
done
echo "fuzz: $ran targets"
[ "$ran" -gt 0 ]
