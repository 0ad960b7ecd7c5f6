# from: Envoy, whose request has the host
# says: write input.destination.host
package egress

allow contains {"rule": "model"} if input.http.host == "model.shop.test"
