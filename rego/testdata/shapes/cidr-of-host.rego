# from: newcomers, net.cidr_contains with a name
# says: this fails, which denies
package egress

deny contains {"rule": "inside"} if net.cidr_contains("10.0.0.0/8", input.destination.host)

allow contains {"rule": "all"}
