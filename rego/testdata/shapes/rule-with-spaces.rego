# from: newcomers, a sentence as the name
# says: without spaces
package egress

allow contains {"rule": "what the shop needs"} if input.destination.host == "a.shop.test"
