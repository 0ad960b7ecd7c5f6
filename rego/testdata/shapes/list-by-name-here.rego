# from: v0's sets, with brackets of a list
# says: a list has numbers for keys
package egress

hosts := ["a.shop.test", "b.shop.test"]

allow contains {"rule": "listed"} if hosts[input.destination.host]
