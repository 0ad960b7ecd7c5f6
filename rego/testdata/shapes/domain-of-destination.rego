# from: newcomers, another word for the host
# says: write input.destination.host
package egress

allow contains {"rule": "model"} if input.destination.domain == "model.shop.test"
