# from: newcomers, an address where egressd has a list
# says: write input.destination.addresses
package egress

deny contains {"rule": "inside"} if net.cidr_contains("10.0.0.0/8", input.destination.ip)

allow contains {"rule": "all"}
