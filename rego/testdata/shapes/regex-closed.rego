# from: allow lists of proxies as regular expressions
# allow: https://a1.shop.test/
# deny: https://aa.shop.test/
# deny: https://a1.shop.test.evil.test/
package egress

patterns := [`^a[0-9]+\.shop\.test$`, `^b\.shop\.test$`]

allow contains {"rule": "numbered"} if {
	some pattern in patterns
	regex.match(pattern, input.destination.host)
}
