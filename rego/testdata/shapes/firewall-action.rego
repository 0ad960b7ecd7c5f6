# from: an agent's firewall, an action and the name of a rule
# data: {"firewall": {"default_action": "deny", "allowed_domains": ["shop.test"]}}
# whole: no file has a rule for allow, ask or deny
package agent.firewall

import rego.v1

default action := "deny"

action := "allow" if _is_allowed

rule_name := "listed" if _is_allowed

rule_name := "default-policy" if not _is_allowed

_is_allowed if {
	some domain in data.firewall.allowed_domains
	input.destination == domain
}
