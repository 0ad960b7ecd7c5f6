# from: newcomers, an object assigned to allow
# says: allow contains {"rule": "NAME"}
package egress

allow := {"rule": "model"} if input.destination.host == "model.shop.test"
