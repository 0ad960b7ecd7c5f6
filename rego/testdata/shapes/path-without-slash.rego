# from: prefixes of paths
# lint: write "/api/"
# deny: https://a.shop.test/api/x
package egress

allow contains {"rule": "api"} if startswith(input.http.path, "api/")
