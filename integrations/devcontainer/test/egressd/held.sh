#!/bin/sh
# What devcontainer features test runs in the container of the scenario.
set -eu
/probe "get http://a.allowed.test/" | grep "200 OK origin"
/probe "get http://evil.test/" | grep "403 Blocked by egressd"
/probe "direct http://151.101.1.69/" | grep "error: "
[ "$(sed -n 's/^mode=//p' /usr/local/share/egressd/settings)" = proxy ]
echo "held by egressd"
