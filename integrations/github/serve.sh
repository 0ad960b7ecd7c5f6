#!/usr/bin/env bash
# Starts egressd serve, and gives later steps the variables that lead to it. A step that does
# not heed them is not held.
set -euo pipefail
dir=$RUNNER_TEMP/egressd
export XDG_STATE_HOME=$dir/state
mkdir -p "$XDG_STATE_HOME"
nohup "$dir/bin/egressd" serve --config "$EGRESSD_POLICY" >"$dir/serve.log" 2>&1 &
echo $! >"$dir/serve.pid"
for _ in $(seq 300); do
	grep -q '^egressd: policy ' "$dir/serve.log" && break
	kill -0 "$(cat "$dir/serve.pid")" 2>/dev/null || break
	sleep 0.1
done
if ! grep -q '^egressd: policy ' "$dir/serve.log"; then
	cat "$dir/serve.log" >&2
	echo "::error title=egressd::it did not start"
	exit 1
fi
"$dir/bin/egressd" env --config "$EGRESSD_POLICY" | sed -n "s/^export \([A-Za-z0-9_]*\)='\(.*\)'\$/\1=\2/p" >>"$GITHUB_ENV"
