# from: newcomers, == with a list
# says: a text never equals a list
package egress

hosts := ["a.shop.test", "b.shop.test"]

allow contains {"rule": "listed"} if input.destination.host == hosts
