#!/usr/bin/env bash
# Runs the client set-ups of the manual under egressd run, against hosts in a
# network namespace, and prints the table of what came of them. Beside what
# scripts/setup.sh installs it needs Java 17, ssh, psql and Python's requests,
# httpx and aiohttp.
set -euo pipefail
cd "$(dirname "$0")/.."
table=$(mktemp)
trap 'rm -f "$table"' EXIT
EGRESSD_E2E_CLIENTS=$table go test -count=1 -run 'TestRunClients$' ./e2e/run >&2 || failed=1
cat "$table"
exit "${failed:-0}"
