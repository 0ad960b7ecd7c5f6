#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time each.
set -euo pipefail
cd "$(dirname "$0")/.."
each=${1:-10s}
ran=0
for package in $(go list ./...); do
	dir=${package#github.com/egressd/egressd}
	[ -n "$(grep -ls '^func Fuzz' ".$dir"/*_test.go 2>/dev/null || true)" ] || continue
	for target in $(go test -list '^Fuzz' "$package" | grep '^Fuzz'); do
		echo "fuzz: $package $target $each"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$each" "$package"
		ran=$((ran + 1))
	done
done
echo "fuzz: $ran targets"
[ "$ran" -gt 0 ]
