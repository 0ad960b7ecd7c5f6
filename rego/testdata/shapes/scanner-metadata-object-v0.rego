# from: Trivy's older checks, __rego_metadata__
# v0
# says: write it as deny in package egress
package user.shop

__rego_metadata__ := {"id": "SHOP-1", "severity": "LOW"}

__rego_input__ := {"selector": [{"type": "yaml"}]}

deny[res] {
	input.services[_].ports[_] == "25:25"
	res := {"msg": "no mail", "title": "ports"}
}
