# from: Envoy policies with object.get for a header
# says: write "yes" in input.http.headers["x-shop"]
package egress

allow contains {"rule": "marked"} if object.get(input.http.headers, "x-shop", "no") == "yes"
