# says: not an address
package egress

deny contains {"rule": "intranet"} if net.contains("10.0.0.0/8", input.destination.host)

allow contains {"rule": "all"}
