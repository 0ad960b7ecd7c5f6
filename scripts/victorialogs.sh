#!/usr/bin/env bash
# Builds VictoriaLogs from its module and runs the queries of docs/how-to/query-the-log.md against it.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
GOBIN=$folder CGO_ENABLED=0 go install "github.com/VictoriaMetrics/VictoriaLogs/app/victoria-logs@${VICTORIALOGS_VERSION:-v1.52.2}"
EGRESSD_VICTORIALOGS=$folder/victoria-logs go test -tags victorialogs -count=1 -v -run 'LogsQL' ./logs/export
