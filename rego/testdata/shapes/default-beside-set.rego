# says: leave this line out
package egress

default allow := false

allow contains {"rule": "model"} if input.destination.host == "model.shop.test"
