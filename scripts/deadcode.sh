#!/usr/bin/env bash
# Lists the functions that neither a command nor a test reaches, and fails if there are any.
set -euo pipefail
cd "$(dirname "$0")/.."
found=$(go tool -modfile=tools/go.mod deadcode -test ./... && cd bench && go tool -modfile=../tools/go.mod deadcode -test ./...)
[ -z "$found" ] || { printf '%s\n' "$found"; exit 1; }
