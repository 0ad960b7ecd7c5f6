# from: Envoy, whose headers have one value
# says: write "yes" in input.http.headers
package egress

allow contains {"rule": "marked"} if input.http.headers["x-shop"] == "yes"
