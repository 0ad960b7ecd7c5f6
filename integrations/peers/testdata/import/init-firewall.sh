#!/bin/bash
set -euo pipefail
iptables -A OUTPUT -p udp --dport 53 -j ACCEPT
iptables -A OUTPUT -p tcp --dport 22 -j ACCEPT
ipset create allowed-domains hash:net
gh_ranges=$(curl -s https://api.github.com/meta)
# for domain in "commented.example"; do
for domain in \
    "registry.npmjs.org" \
    "api.anthropic.com" \
    "$EXTRA"; do
    ips=$(dig +noall +answer A "$domain" | awk '{print $5}')
done
ipset add allowed-domains 93.184.216.0/24
iptables -A OUTPUT -d "$HOST_NETWORK" -j ACCEPT
