# from: newcomers
# says: did you mean input.destination.host?
package egress

allow contains {"rule": "model"} if input.destination.hots == "model.shop.test"
