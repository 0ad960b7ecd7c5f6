# from: newcomers
# says: write it as allow in package egress
package Egress

allow contains {"rule": "model"} if input.destination.host == "model.shop.test"
