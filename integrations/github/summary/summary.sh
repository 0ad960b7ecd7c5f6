#!/usr/bin/env bash
# Writes what the log says to the summary of the job.
set -euo pipefail
dir=$RUNNER_TEMP/egressd
export XDG_STATE_HOME=$dir/state
of=()
if [ "${EGRESSD_OF_RUN:-false}" = true ]; then
	of=(--run last)
elif [ -e "$dir/serve.pid" ]; then
	pid=$(cat "$dir/serve.pid")
	kill "$pid" 2>/dev/null || true
	for _ in $(seq 150); do
		grep -q '^State:[[:space:]]*[DIRSTt]' "/proc/$pid/status" 2>/dev/null || break # a zombie has ended, too
		sleep 0.1
	done
	rm "$dir/serve.pid"
fi
"$dir/bin/egressd" log --config "$EGRESSD_POLICY" "${of[@]}" --markdown >>"$GITHUB_STEP_SUMMARY"
