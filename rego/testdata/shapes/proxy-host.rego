# says: write input.destination.host
package egress

allow contains {"rule": "model"} if input.host == "model.shop.test"
