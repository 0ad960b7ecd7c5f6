#!/bin/bash
# Runs the tests of the example policies with the opa command, built from the module
# that go.mod names, and has it check and build them. The first build takes minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

version=$(go list -m -f '{{.Version}}' github.com/open-policy-agent/opa)
GOBIN=$dir CGO_ENABLED=0 go install "github.com/open-policy-agent/opa@$version"
go build -o "$dir/egressd" ./cmd/egressd

for example in examples/policies/*/; do
  policy=${example}policy library=$dir/library
  echo "$policy"
  rm -rf "$library"
  "$dir/egressd" policy build --library "$library" "$policy" 2>/dev/null
  "$dir/opa" test "$policy" "$library"
  "$dir/opa" check --strict --schema "$library/input.schema" "$policy" "$library"
  "$dir/opa" build --capabilities "$library/egressd.capabilities" -b "$policy" -o "$dir/bundle.tar.gz"
done
