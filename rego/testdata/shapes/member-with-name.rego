# from: newcomers
# says: it is none of rule
package egress

allow contains {"name": "shop"} if input.destination.host == "a.shop.test"
