# from: Pomerium, a status and a sentence
# v0
# says: write it as deny in package egress
package pomerium.policy

deny[status] {
	status := [401, "who are you"]
	not input.user
}

deny[status] {
	status := [403, "not from here"]
	count([domain | domain := data.allowed_domains[_]; endswith(input.user.email, domain)]) == 0
}
