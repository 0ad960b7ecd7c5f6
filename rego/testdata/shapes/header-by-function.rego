# from: Envoy, a header given to a function of text
# says: startswith wants a text
package egress

allow contains {"rule": "marked"} if startswith(input.http.headers["x-shop"], "crate-")
