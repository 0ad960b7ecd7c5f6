# from: Envoy, the name in the Host header
# lint: write input.destination.host
# deny: https://model.shop.test/
package egress

allow contains {"rule": "model"} if "model.shop.test" in input.http.headers.host
